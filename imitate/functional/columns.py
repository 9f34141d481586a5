"""Selection of columns: numbers of the last axis of a tensor, by their indices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def columns(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the numbers at ``dims`` of ``x`` (*B, D): (*B, len(dims)).

    Indexing with a list gives the same result, but copies the list to the device of ``x``, which makes the CPU wait for
    a GPU.
    """
    first, count = dims[0], len(dims)
    if list(dims) == list(range(first, first + count)):
        return x[..., first : first + count]
    return torch.stack([x[..., dim] for dim in dims], dim=-1)
