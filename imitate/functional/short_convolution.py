"""Convolutions over short sequences and small images on the CPU, with a faster gradient of the kernel.

oneDNN reorders kernels and their gradients between its own layout and that of the weights. Where a kernel is large and
the sequence or image small, as at the bottom of a U-Net over action chunks or of a ResNet, this takes longer than the
gradient's multiplications; one matrix product whose result has the layout of the weights does without it. The results
are those of ``conv2d`` up to rounding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from imitate.functional.eager import is_eager
from imitate.functional.products import linear

SHORT_STEPS = 4
"""Result lengths up to this are short for kernels of any size."""
LARGE_KERNEL = 1024 * 1024
"""Input channels times output channels from which the product is faster at any length."""
LARGE_IMAGE_KERNEL = 256 * 512
"""Input channels times output channels from which the product is faster on few pixels."""
FEW_PIXELS = 1024
"""Results, of all images of a batch together, up to which it is."""

Pair = tuple[int, int]


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
    kernels, strides, padding = kernel.unsqueeze(2), (1, stride), (0, kernel.shape[2] // 2)
    steps = -(-x.shape[-1] // stride)
    is_short = steps <= SHORT_STEPS or kernel.shape[0] * kernel.shape[1] >= LARGE_KERNEL
    if learning and is_short and _may_use_product(x, kernel):
        y: Tensor = ProductConvolution.apply(x, kernels, bias, strides, padding)  # type: ignore[no-untyped-call]
        return y
    return F.conv2d(x, kernels, bias, strides, padding)


def convolution_over_images(
    x: Tensor, kernel: Tensor, bias: Tensor | None, stride: Pair, padding: Pair
) -> Tensor:
    """Convolve as ``conv2d`` does: (B, I, H, W) with the kernel (O, I, h, w) to (B, O, H', W')."""
    height, width = (
        (size + 2 * pad - window) // step + 1
        for size, pad, window, step in zip(
            x.shape[2:], padding, kernel.shape[2:], stride, strict=True
        )
    )
    is_large = kernel.shape[0] * kernel.shape[1] >= LARGE_IMAGE_KERNEL
    if is_large and len(x) * height * width <= FEW_PIXELS and _may_use_product(x, kernel):
        y: Tensor = ProductConvolution.apply(x, kernel, bias, stride, padding)  # type: ignore[no-untyped-call]
        return y
    return F.conv2d(x, kernel, bias, stride, padding)


def _may_use_product(x: Tensor, kernel: Tensor) -> bool:
    """Return True where the kernel gets a gradient, and nothing else decides how it is computed."""
    return (
        is_eager()
        and torch.is_grad_enabled()
        and kernel.requires_grad
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
    )


class ProductConvolution(torch.autograd.Function):
    """``conv2d`` with the gradient of the kernel as one matrix product."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kernel: Tensor, bias: Tensor | None, stride: Pair, padding: Pair
    ) -> Tensor:
        """Convolve, and keep what the gradients need."""
        ctx.save_for_backward(x, kernel)
        ctx.stride, ctx.padding = stride, padding
        return F.conv2d(x, kernel, bias, stride, padding)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the input, the kernel and the bias, those that are wanted; they have gradients too."""
        x, kernel = ctx.saved_tensors
        stride, padding = ctx.stride, ctx.padding
        of_x, of_kernel, of_bias, *_ = ctx.needs_input_grad
        grad_x = None
        if of_x:
            mask = [True, False, False]  # with the bias it would compute the kernel's gradient too
            grad_x, _, _ = torch.ops.aten.convolution_backward(
                grad, x, kernel, None, stride, padding, [1, 1], False, [0, 0], 1, mask
            )
        grad_kernel = _kernel_gradient(grad, x, kernel, stride, padding) if of_kernel else None
        return grad_x, grad_kernel, grad.sum((0, 2, 3)) if of_bias else None, None, None


def _kernel_gradient(
    grad: Tensor, x: Tensor, kernel: Tensor, stride: Pair, padding: Pair
) -> Tensor:
    """Return the gradient (O, I, h, w) of the kernel, with I innermost in memory."""
    outputs, inputs, height, width = kernel.shape
    pixels = F.pad(x.permute(0, 2, 3, 1), (0, 0, padding[1], padding[1], padding[0], padding[0]))
    windows = pixels.unfold(1, height, stride[0]).unfold(
        2, width, stride[1]
    )  # (B, H', W', I, h, w)
    patches = windows.permute(0, 1, 2, 4, 5, 3).reshape(-1, height * width * inputs)
    rows = grad.permute(0, 2, 3, 1).reshape(-1, outputs)
    return linear(rows.T, patches.T).view(outputs, height, width, inputs).permute(0, 3, 1, 2)
