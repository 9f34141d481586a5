"""Numbers of the last axis of a tensor, by their places."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def columns(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the numbers at ``dims`` of ``x`` (*B, D): (*B, len(dims)).

    A list as an index gives the same, but is copied to the device of ``x``, for which a GPU would be waited for.
    """
    first, count = dims[0], len(dims)
    if list(dims) == list(range(first, first + count)):
        return x[..., first : first + count]
    return torch.stack([x[..., dim] for dim in dims], dim=-1)
