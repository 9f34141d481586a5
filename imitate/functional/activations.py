"""Hyperbolic tangent on the CPU, by the faster of the two libraries at hand.

torch computes it with MKL, which on processors of other makers than Intel takes ten times as long as numpy: on an AMD
EPYC with AVX-512 33 microseconds for 256 rows of 64, where numpy takes 3. Both err by less than one unit in the last
place or two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from imitate.functional.eager import is_eager
from imitate.functional.products import onednn_is_faster

LEAST_SIZE = 1024
"""Numbers in a tensor from which calling numpy, some 2 microseconds, is worth it."""


def tanh(x: Tensor) -> Tensor:
    """``torch.tanh``, of any shape, with its gradients."""
    if not _is_for_numpy(x):
        return torch.tanh(x)
    if x.requires_grad and torch.is_grad_enabled():
        y: Tensor = _Tanh.apply(x)  # type: ignore[no-untyped-call]
        return y
    return _by_numpy(x)


def _is_for_numpy(x: Tensor) -> bool:
    """Return True where numpy may and should compute it: MKL serves the processor badly, the tensor is large."""
    return (
        x.device.type == "cpu"
        and x.dtype is torch.float32
        and x.numel() >= LEAST_SIZE
        and is_eager()
        and onednn_is_faster()
    )


def _by_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(np.tanh(x.detach().numpy()))


class _Tanh(torch.autograd.Function):
    """The gradient is computed by torch's own operator, which has a gradient too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = _by_numpy(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        of_x: Tensor = torch.ops.aten.tanh_backward(grad, y)
        return of_x
