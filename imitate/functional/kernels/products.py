"""Matrix products of training on the CPU, computed by the faster of torch's two libraries.

torch multiplies float32 matrices with MKL, which reaches only half of the possible speed on processors that are not
made by Intel: on an AMD EPYC with AVX-512, MKL reaches 98 billion operations per second and oneDNN, which torch
contains too, 210. On such processors this module computes large products and their gradients with oneDNN. Results are
the same up to the order of sums.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from imitate.functional.kernels.switch import kernels_apply, switched_on

LEAST_WORK = 2**22
"""Smallest number of multiplications for which calling oneDNN, some 20 microseconds, pays off."""
LEAST_ROWS = 4
"""Smallest number of rows. With fewer, reading the matrix takes the time, and oneDNN is slower for the gradient."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``F.linear``: (*B, D) times weight (E, D), transposed, plus bias (E,), gives (*B, E)."""
    if not _is_for_onednn(x.shape[:-1].numel(), weight.numel(), x, weight):
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    if torch.is_grad_enabled():
        y: Tensor = _Linear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    else:
        y = onednn_product(rows, weight, bias)
    if x.dim() == 2:
        return y
    # torch's own linear does the same; a real view would make in-place activations slow
    reshaped: Tensor = torch.ops.aten._unsafe_view(y, (*x.shape[:-1], len(weight)))
    return reshaped


def linears(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply E linear maps: (E, N, D) times weight (E, D, M), plus bias (E, M), gives (E, N, M)."""
    if not _is_for_onednn(x.shape[1], weight.numel() // len(weight), x, weight):
        return torch.baddbmm(bias.unsqueeze(1), x, weight)
    # no indexing: the gradient of each part would be as large as the whole
    members = zip(x.unbind(), weight.unbind(), bias.unbind(), strict=True)
    return torch.stack([linear(rows, matrix.t(), shift) for rows, matrix, shift in members])


def onednn_product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply (N, D) by (E, D), transposed, with oneDNN, and add bias (E,); gives (N, E) without a gradient.

    Either factor may be a transposed view, at no extra cost.
    """
    if bias is not None:
        bias = bias.contiguous()  # with other strides, oneDNN reads past the end
    y: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")
    return y


def _is_for_onednn(rows: int, size: int, x: Tensor, weight: Tensor) -> bool:
    """Return True if oneDNN can, and should, multiply this number of rows by a matrix of ``size`` numbers."""
    return (
        kernels_apply()
        and rows >= LEAST_ROWS
        and rows * size >= LEAST_WORK
        and x.dtype is weight.dtype is torch.float32
        and x.device.type == weight.device.type == "cpu"
        and onednn_is_faster()
        and bool(torch.backends.mkldnn.enabled)  # a user may have turned it off
        and not torch.is_autocast_enabled("cpu")
    )


@cache
def onednn_is_faster() -> bool:
    """Return True if torch computes float32 products with MKL, on a processor on which MKL is slow.

    These are AMD's processors with AVX-512. On those with only AVX2, MKL was as fast, and faster for few rows.
    """
    capability: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    name = str(capability.get("cpu_name", "Intel"))
    is_wide = bool(capability.get("avx512_f", False))
    has_both: bool = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    has_product = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return switched_on() and has_both and is_wide and "Intel" not in name and has_product


class _Linear(torch.autograd.Function):
    """Autograd function of ``F.linear`` for rows (N, D). Its gradients are differentiable products of the same kind."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return onednn_product(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        grad = grad.contiguous()
        return (
            linear(grad, weight.t()) if of_rows else None,
            linear(grad.t(), rows.t()) if of_weight else None,
            grad.sum(0) if of_bias else None,
        )
