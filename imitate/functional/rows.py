"""Rows of batches: nested dicts of tensors (B, ...)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

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
