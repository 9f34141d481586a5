"""Convolutions over short sequences on the CPU, with a faster gradient of the kernel.

oneDNN reorders kernels and their gradients between its own layout and that of the weights. Where a kernel is large and
the sequence short, as at the bottom of a U-Net over action chunks, this takes longer than the gradient's
multiplications; one matrix product whose result has the layout of the weights does without it. The results are
those of ``conv2d`` up to rounding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

SHORT_STEPS = 4
"""Result lengths up to this are short for kernels of any size."""
LARGE_KERNEL = 1024 * 1024
"""Input channels times output channels from which the product is faster at any length."""


def convolution_over_time(
    x: Tensor, kernel: Tensor, bias: Tensor | None, stride: int, *, learning: bool = True
) -> Tensor:
    """Convolve over time, padded by zeros to ceil(T / stride) steps.

    Args:
        x: (B, I, 1, T), best with channels last in memory.
        kernel: (O, I, K), K odd, best with I innermost in memory.
        bias: (O,) or None.
        stride: steps between results.
        learning: the gradient of the kernel will be wanted; false where only that of ``x`` may be.

    Returns:
        (B, O, 1, ceil(T / stride)).
    """
    if learning and _product_is_faster(x, kernel, stride):
        y: Tensor = ConvolutionOverTime.apply(x, kernel, bias, stride)  # type: ignore[no-untyped-call]
        return y
    return _convolve(x, kernel, bias, stride)


def _convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    return F.conv2d(x, kernel.unsqueeze(2), bias, (1, stride), (0, kernel.shape[2] // 2))


def _product_is_faster(x: Tensor, kernel: Tensor, stride: int) -> bool:
    """Return True where the kernel gets a gradient and :class:`ConvolutionOverTime` takes less time for it."""
    if not (torch.is_grad_enabled() and kernel.requires_grad and x.device.type == "cpu"):
        return False
    if torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return False
    steps = -(-x.shape[-1] // stride)
    return steps <= SHORT_STEPS or kernel.shape[0] * kernel.shape[1] >= LARGE_KERNEL


class ConvolutionOverTime(torch.autograd.Function):
    """``conv2d`` with the gradient of the kernel as one matrix product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, bias: Tensor | None, stride: int) -> Tensor:
        """Convolve, and keep what the gradients need."""
        ctx.save_for_backward(x, kernel)
        ctx.stride = stride
        return _convolve(x, kernel, bias, stride)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the input, the kernel and the bias, those that are wanted."""
        x, kernel = ctx.saved_tensors
        of_x, of_kernel, of_bias, _ = ctx.needs_input_grad
        grad_x, _, _ = torch.ops.aten.convolution_backward(
            grad,
            x,
            kernel.unsqueeze(2),
            None,
            [1, ctx.stride],
            [0, kernel.shape[2] // 2],
            [1, 1],
            False,
            [0, 0],
            1,
            [of_x, False, False],  # with the bias it would compute the kernel's gradient too
        )
        grad_kernel = _kernel_gradient(grad, x, kernel, ctx.stride) if of_kernel else None
        return grad_x, grad_kernel, grad.sum((0, 2, 3)) if of_bias else None, None


def _kernel_gradient(grad: Tensor, x: Tensor, kernel: Tensor, stride: int) -> Tensor:
    """Return the gradient (O, I, K) of the kernel, with I innermost in memory."""
    outputs, inputs, size = kernel.shape
    over_time = x.squeeze(2).transpose(1, 2)  # (B, T, I)
    padded = F.pad(over_time, (0, 0, size // 2, size // 2))
    windows = padded.unfold(1, size, stride).transpose(2, 3).reshape(-1, size * inputs)
    rows = grad.squeeze(2).transpose(1, 2).reshape(-1, outputs)
    return (rows.T @ windows).view(outputs, size, inputs).transpose(1, 2)
