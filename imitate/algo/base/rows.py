"""Rows of batches, nested dicts of tensors (B, ...), and the stacked frames of whole rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.models.actor import Obs

CHUNK = 4096
"""Number of rows that networks process at a time in a pass over a whole rollout."""


def select_rows(batch: Mapping[str, Any], rows: Tensor | slice) -> dict[str, Any]:
    """Select rows of every tensor, by their numbers, a mask, or a slice."""
    if isinstance(rows, Tensor) and rows.dtype == torch.bool:
        # computed once for all tensors, because the CPU waits for the GPU here
        rows = rows.nonzero()[:, 0]
    return {
        key: select_rows(value, rows) if isinstance(value, Mapping) else value[rows]
        for key, value in batch.items()
    }


def join_rows(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Concatenate the rows of two batches, for the tensors of the first."""
    return {
        key: join_rows(value, second[key])
        if isinstance(value, Mapping)
        else torch.cat([value, second[key]])
        for key, value in first.items()
    }


def by_parts(
    function: Callable[[dict[str, Any]], Tensor | None],
    batch: Mapping[str, Any],
    size: int = CHUNK,
) -> Tensor | None:
    """Compute a function's result (B,) for a batch, ``size`` rows at a time; None if the function returns None."""
    parts = range(0, num_rows(batch), size)
    found = [function(select_rows(batch, slice(start, start + size))) for start in parts]
    known = [part for part in found if part is not None]
    return torch.cat(known) if known else None


def num_rows(batch: Mapping[str, Any]) -> int:
    """Return the number of rows B: the length of the first tensor."""
    first = next(iter(batch.values()))
    return num_rows(first) if isinstance(first, Mapping) else len(first)


def stacked_frames(
    obs: Obs, end_obs: Obs, rollout: Mapping[str, Any], frames: int
) -> tuple[Obs, Obs, NDArray[np.bool_]]:
    """Stack the last F = ``frames`` observations at each step of a rollout, and after its ``end_rows``.

    Args:
        obs: (T N, ...) by key.
        end_obs: (M, ...) by key.
        rollout: see :meth:`~imitate.algo.base.on_policy.OnPolicy.prepare_rollout`.
        frames: F. Before an episode's start its first observation is repeated.

    Returns:
        (T N, F, ...) and (M, F, ...) by key, oldest first; and (T, N), false at the first steps of the rollout, whose
        earlier observations are not in it.
    """
    ends = rollout["terminals"] | rollout["timeouts"]
    num_steps, num_envs = ends.shape
    steps = np.arange(num_steps)[:, None]
    begins = np.concatenate([np.ones_like(ends[:1]), ends[:-1]])
    begun = np.maximum.accumulate(np.where(begins, steps, 0), axis=0)[..., None]
    wanted = steps[..., None] - np.arange(frames - 1, -1, -1)
    rows = np.maximum(wanted, begun) * num_envs + np.arange(num_envs)[None, :, None]
    known = (wanted[..., 0] >= begun[..., 0]) | (begun[..., 0] > 0)
    found = torch.from_numpy(rows.reshape(-1, frames))
    before = found[torch.from_numpy(rollout["end_rows"]), 1:]
    after = {
        key: torch.cat([obs[key][before.to(x.device)], x.unsqueeze(1)], 1)
        for key, x in end_obs.items()
    }
    return {key: x[found.to(x.device)] for key, x in obs.items()}, after, known
