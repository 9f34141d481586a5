"""Rows and transitions of batches, which are nested dicts of tensors (B, ...), and stacked frames of whole rollouts.

A transition may have a chunk of K actions that are executed one after another. The TD target of a chunk needs no
off-policy correction, because the K rewards in the data are those of its own K actions (Li, Zhou, Levine,
"Reinforcement Learning with Action Chunking", NeurIPS 2025, arXiv:2507.07969):

    target(s_t, a_t ... a_t+K-1) = r_t + g r_t+1 + ... + g^(K-1) r_t+K-1 + g^K V(s_t+K)

Chunks begin at any step of an episode. A chunk that is cut short by a timeout, or by the newest step of an environment,
has the weight 0. A chunk that is cut short by a terminal keeps its weight; its last action is repeated to fill it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.algo.base.algo import Algo, Batch
from imitate.errors import DatasetError
from imitate.models.actor import Obs

CHUNK = 4096
"""Number of rows that networks process at a time in a pass over a whole rollout."""


def select_rows(batch: Mapping[str, Any], rows: Tensor | slice) -> dict[str, Any]:
    """Select rows of every tensor of a batch, by row numbers, a boolean mask, or a slice."""
    if isinstance(rows, Tensor) and rows.dtype == torch.bool:
        # convert the mask to row numbers once for all tensors, because each conversion makes the CPU wait for the GPU
        rows = rows.nonzero()[:, 0]
    return {
        key: select_rows(value, rows) if isinstance(value, Mapping) else value[rows]
        for key, value in batch.items()
    }


def arrays_of(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a nested dict of tensors to a nested dict of numpy arrays."""
    return {
        key: arrays_of(value) if isinstance(value, Mapping) else value.cpu().numpy()
        for key, value in tree.items()
    }


def join_rows(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Concatenate the rows of two batches; keys that only the second batch has are dropped."""
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
        earlier observations the rollout does not contain.
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


def with_transitions(batch: Batch, algo: Algo, now: int) -> Batch:
    """Return a prepared batch with transitions (``next_obs``, ``n_step_rewards``, ``discounts``).

    If the batch has no transitions, transitions of one step are made from its rewards and terminals.

    Args:
        batch: windows (B, T, ...).
        algo: algorithm whose section defines the transitions that it needs.
        now: index of the current step in the window.

    Raises:
        DatasetError: the batch has no rewards or terminals, or transitions of several steps are needed.
    """
    if "discounts" in batch:
        return batch
    wanted = algo.config.data_needs(algo.global_config).transitions
    ends = batch.get("terminals", batch.get("dones"))
    lacks = "next_obs" not in batch or "rewards" not in batch
    if (
        wanted is None
        or ends is None
        or lacks
        or wanted.n_step > 1
        or wanted.next_actions
        or wanted.signals
        or wanted.infinite_horizon
    ):
        raise DatasetError(
            f"{algo.global_config.algo_name} learns from transitions, which the batches lack: make the dataset "
            "by build_datasets(config), or with "
            "SequenceDataset(..., transitions=config.algo.data_needs(config).transitions)"
        )
    return {
        **batch,
        "next_obs": {key: value[:, : now + 1] for key, value in batch["next_obs"].items()},
        "n_step_rewards": batch["rewards"][:, now],
        "discounts": wanted.discount * (1.0 - ends[:, now]),
    }


def with_chunk(selected: Batch) -> Batch:
    """Flatten ``chunk`` (B, K, A) of a batch to (B, K A), and add the weights ``valid`` (B,), 0 for cut chunks."""
    weight = selected["weight"]
    valid = selected["chunk_mask"].all(-1) | (selected["discounts"] == 0)
    valid = valid.to(selected["discounts"])
    return {
        **selected,
        "chunk": selected["chunk"].flatten(1),
        "valid": valid if weight is None else valid * weight,
    }
