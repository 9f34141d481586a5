"""Convolutions over short sequences and small images on the CPU, as matrix products if those are faster.

oneDNN reorders kernels and their gradients between its own layout and that of the weights. If a kernel is large and the
sequence or image is small, as at the bottom of a U-Net over action chunks or of a ResNet, this takes longer than the
multiplications. Matrix products in the layout of the weights avoid this reordering. The results are those of ``conv2d``
up to rounding.

Which way is faster depends on the processor, so the limits below were measured on two kinds of processors. With AVX-512
only the gradient of the kernel is computed as a product. With only AVX2, oneDNN is slower: products are faster for more
of the kernels' gradients, and for large kernels also for the result and the gradient of the input.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from imitate.functional.kernels.layers import kernels_apply, linear

SHORT_STEPS = 4
"""Largest length of the output that counts as short for kernels of any size."""
LARGE_KERNEL = 1024 * 1024
"""Smallest product of input and output channels for which a matrix product is faster at any length."""
LARGE_IMAGE_KERNEL = 256 * 512
"""Smallest product of input and output channels for which a matrix product is faster on few pixels."""
FEW_PIXELS = 1024
"""Largest number of output pixels of a whole batch that counts as few."""

FEW_RESULTS = 16
"""With only AVX2: largest number of results of a batch per output channel for which the kernel's gradient is a product.
"""
WHOLE_KERNEL = 512 * 512
"""With only AVX2: smallest product of input and output channels for which everything is computed by products."""
WHOLE_RESULTS = 4
"""With only AVX2: largest number of results of a batch per output channel for which products compute everything."""
LEAST_RESULTS = 16
"""With only AVX2: smallest number of results of a batch for which products compute everything; acting has fewer."""

Pair = tuple[int, int]


def convolution_over_time(
    x: Tensor, kernel: Tensor, bias: Tensor | None, stride: int, *, learning: bool = True
) -> Tensor:
    """Convolve over time, with zero padding to ceil(T / stride) steps.

    Args:
        x: (B, I, 1, T); fastest with channels last in memory.
        kernel: (O, I, K), K odd; fastest with I innermost in memory.
        bias: (O,) or None.
        stride: number of steps between results.
        learning: true if the gradient of the kernel may be needed; false if at most the gradient of ``x`` is.

    Returns:
        (B, O, 1, ceil(T / stride)).
    """
    steps = -(-x.shape[-1] // stride)
    is_short = steps <= SHORT_STEPS or kernel.shape[0] * kernel.shape[1] >= LARGE_KERNEL
    kernels, padding = kernel.unsqueeze(2), (0, kernel.shape[2] // 2)
    return _convolution(
        x, kernels, bias, (1, stride), padding, len(x) * steps, is_short, learning=learning
    )


def convolution_over_images(
    x: Tensor, kernel: Tensor, bias: Tensor | None, stride: Pair, padding: Pair
) -> Tensor:
    """Convolve like ``conv2d``: (B, I, H, W) with the kernel (O, I, h, w) to (B, O, H', W')."""
    height, width = _result_size(x, kernel, stride, padding)
    results = len(x) * height * width
    is_small = kernel.shape[0] * kernel.shape[1] >= LARGE_IMAGE_KERNEL and results <= FEW_PIXELS
    return _convolution(x, kernel, bias, stride, padding, results, is_small)


def _convolution(
    x: Tensor,
    kernel: Tensor,
    bias: Tensor | None,
    stride: Pair,
    padding: Pair,
    results: int,
    is_short: bool,
    *,
    learning: bool = True,
) -> Tensor:
    """Convolve (B, I, H, W) with (O, I, h, w).

    Args:
        x, kernel, bias, stride, padding: arguments of ``conv2d``.
        results: number of output positions in a batch, B H' W'.
        is_short: true if the kernel's gradient is faster as a product with AVX-512.
        learning: true if the gradient of the kernel may be needed.
    """
    # checked first, because torch.compile cannot put the following code into one graph
    if not _may_use_product(x):
        return F.conv2d(x, kernel, bias, stride, padding)
    outputs, inputs = kernel.shape[:2]
    is_whole = False
    if _has_avx2_alone():
        is_short = results <= FEW_RESULTS * outputs
        fits = LEAST_RESULTS <= results <= WHOLE_RESULTS * outputs
        is_whole = fits and outputs * inputs >= WHOLE_KERNEL
    if is_short or is_whole:
        if torch.is_grad_enabled() and learning and kernel.requires_grad:
            y: Tensor = ProductConvolution.apply(x, kernel, bias, stride, padding, is_whole)  # type: ignore[no-untyped-call]
            return y
        if is_whole and not torch.is_grad_enabled():
            return product(x, kernel, bias, stride, padding)
    return F.conv2d(x, kernel, bias, stride, padding)


def _may_use_product(x: Tensor) -> bool:
    """Return True on the CPU, if kernels are not disabled and autocast is off."""
    return kernels_apply() and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


@cache
def _has_avx2_alone() -> bool:
    """Return True for a processor with AVX2 but without AVX-512."""
    capability: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capability.get("avx2")) and not capability.get("avx512_f")


class ProductConvolution(torch.autograd.Function):
    """``conv2d`` whose kernel gradient is one matrix product; with ``whole``, also its result and input gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        kernel: Tensor,
        bias: Tensor | None,
        stride: Pair,
        padding: Pair,
        whole: bool,
    ) -> Tensor:
        """Convolve, and store what the gradients need."""
        ctx.save_for_backward(x, kernel)
        ctx.stride, ctx.padding, ctx.whole = stride, padding, whole
        convolve = product if whole else F.conv2d
        return convolve(x, kernel, bias, stride, padding)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the needed gradients of the input, the kernel and the bias; they are differentiable themselves."""
        x, kernel = ctx.saved_tensors
        of_x, of_kernel, of_bias, *_ = ctx.needs_input_grad
        given = grad, x, kernel, ctx.stride, ctx.padding
        grad_x = None
        if of_x:
            grad_x = _input_gradient(*given) if ctx.whole else _onednn_input_gradient(*given)
        grad_kernel = _kernel_gradient(*given) if of_kernel else None
        return grad_x, grad_kernel, grad.sum((0, 2, 3)) if of_bias else None, None, None, None


def product(x: Tensor, kernel: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    """Compute ``conv2d`` as a matrix product: (B, O, H', W') with the channels last in memory."""
    height, width = _result_size(x, kernel, stride, padding)
    rows = linear(_patches(x, kernel, stride, padding), _matrix(kernel), bias)
    return rows.view(len(x), height, width, len(kernel)).permute(0, 3, 1, 2)


def _input_gradient(grad: Tensor, x: Tensor, kernel: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Return the gradient (B, I, H, W) of the input: gradients of the patches by a product, then their sum."""
    outputs, inputs, high, wide = kernel.shape
    height, width = grad.shape[2:]
    rows = grad.permute(0, 2, 3, 1).reshape(-1, outputs)
    patches = linear(rows, _matrix(kernel).t()).view(-1, height, width, high, wide, inputs)
    size = [max(n + 2 * pad, (count - 1) * step + window) for n, pad, count, step, window in zip(
        x.shape[2:], padding, (height, width), stride, (high, wide), strict=True
    )]  # fmt: skip
    padded = grad.new_zeros(len(x), *size, inputs)
    for row in range(high):
        for column in range(wide):
            place = padded[:, row :: stride[0], column :: stride[1]]
            place[:, :height, :width].add_(patches[:, :, :, row, column])
    (top, left), (bottom, right) = padding, x.shape[2:]
    return padded[:, top : top + bottom, left : left + right].permute(0, 3, 1, 2)


def _onednn_input_gradient(
    grad: Tensor, x: Tensor, kernel: Tensor, stride: Pair, padding: Pair
) -> Tensor:
    # only the input's gradient: with that of the bias, torch would also compute the kernel's
    mask = [True, False, False]
    grad_x: Tensor
    grad_x, _, _ = torch.ops.aten.convolution_backward(
        grad, x, kernel, None, stride, padding, [1, 1], False, [0, 0], 1, mask
    )
    return grad_x


def _kernel_gradient(
    grad: Tensor, x: Tensor, kernel: Tensor, stride: Pair, padding: Pair
) -> Tensor:
    """Return the gradient (O, I, h, w) of the kernel, with I innermost in memory."""
    outputs, inputs, height, width = kernel.shape
    patches = _patches(x, kernel, stride, padding)
    rows = grad.permute(0, 2, 3, 1).reshape(-1, outputs)
    return linear(rows.T, patches.T).view(outputs, height, width, inputs).permute(0, 3, 1, 2)


def _patches(x: Tensor, kernel: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Return the input patch of each output position as a row: (B H' W', h w I)."""
    _, inputs, height, width = kernel.shape
    pixels = F.pad(x.permute(0, 2, 3, 1), (0, 0, padding[1], padding[1], padding[0], padding[0]))
    # windows: (B, H', W', I, h, w)
    windows = pixels.unfold(1, height, stride[0]).unfold(2, width, stride[1])
    return windows.permute(0, 1, 2, 4, 5, 3).reshape(-1, height * width * inputs)


def _matrix(kernel: Tensor) -> Tensor:
    """Return the kernel as a matrix (O, h w I), without a copy if I is innermost in memory."""
    return kernel.permute(0, 2, 3, 1).reshape(len(kernel), -1)


def _result_size(x: Tensor, kernel: Tensor, stride: Pair, padding: Pair) -> tuple[int, int]:
    """Return the height H' and width W' of the result."""
    height, width = (
        (size + 2 * pad - window) // step + 1
        for size, pad, window, step in zip(
            x.shape[2:], padding, kernel.shape[2:], stride, strict=True
        )
    )
    return height, width
