"""Colour augmentations for a batch of images, each with its own amount.

Images are ``(B, 3, H, W)``, float in [0, 1], before and after. The formulas are those of torchvision's functions of the
same names, which use one amount for the whole batch. ``out`` may be the images themselves; allocating new memory costs
the CPU more time than the arithmetic.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LUMA = (0.2989, 0.587, 0.114)


def grey(images: Tensor) -> Tensor:
    """Return the perceived brightness of images: ``(B, 1, H, W)``."""
    red, green, blue = images.chunk(3, dim=1)
    return (red * _LUMA[0]).add_(green, alpha=_LUMA[1]).add_(blue, alpha=_LUMA[2])


def adjust_brightness(images: Tensor, factor: Tensor, out: Tensor | None = None) -> Tensor:
    """Multiply images by ``factor`` (B,): 0 gives black, 1 changes nothing."""
    return torch.mul(images, _per_image(factor), out=out).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor, out: Tensor | None = None) -> Tensor:
    """Scale the distance of pixels from the image's mean grey by ``factor`` (B,): 0 gives that grey, 1 no change."""
    return _away(images, grey(images).mean(dim=(1, 2, 3), keepdim=True), factor, out)


def adjust_saturation(images: Tensor, factor: Tensor, out: Tensor | None = None) -> Tensor:
    """Scale the distance of pixels from their own grey by ``factor`` (B,): 0 gives a grey image, 1 changes nothing."""
    return _away(images, grey(images), factor, out)


def adjust_hue(images: Tensor, turn: Tensor, out: Tensor | None = None) -> Tensor:
    """Rotate the hue by ``turn`` (B,), in turns: 1/3 makes red green. Value and saturation are unchanged.

    With the hue h in turns, the channels are ``value - chroma clamp(2 - 6 d, 0, 1)``, where d is how far ``h + n`` is
    from a whole turn, and n is 1/2, 1/6, -1/6 for red, green, blue.
    """
    value, chroma, hue = _value_chroma_hue(images)
    # compute 3, 1, -1 without a copy from the host, which would make the CPU wait for the GPU
    n = torch.arange(3.0, -2.0, -2.0, device=images.device, dtype=images.dtype).view(3, 1, 1)
    # 5/2 is half a turn plus two turns, so that the number is positive when its fraction is taken.
    distance = torch.add(hue, n / 6 + _per_image(turn) + 2.5, out=out).frac_().sub_(0.5).abs_()
    return distance.mul_(-6).add_(2).clamp_(0, 1).mul_(chroma).neg_().add_(value)


def _value_chroma_hue(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest channel, the largest minus the smallest, and the hue in turns: ``(B, 1, H, W)`` each."""
    red, green, blue = images.chunk(3, dim=1)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    # Hue in sixths of a turn: (green - blue) / chroma if red is largest, 2 + (blue - red) / chroma if green is, else 4
    # + (red - green) / chroma. The case is chosen by multiplication with 0 or 1, because torch.where is slow on the
    # CPU.
    hue = (blue - red).add_(chroma, alpha=2)
    other = (red - green).add_(chroma, alpha=4).sub_(hue)
    hue.addcmul_(other, (value - green).sign_())
    torch.sub(green, blue, out=other)
    hue.sub_(other).mul_((value - red).sign_()).add_(other)
    return value, chroma, hue.div_((chroma * 6).clamp_min_(1e-12))


def _away(images: Tensor, centre: Tensor, factor: Tensor, out: Tensor | None) -> Tensor:
    factor = _per_image(factor)
    return torch.mul(images, factor, out=out).add_(centre * (1 - factor)).clamp_(0, 1)


def _per_image(amount: Tensor) -> Tensor:
    return amount.view(-1, 1, 1, 1)
