"""Changes of colour, for a batch of images at once, each by its own amount.

Images are ``(B, 3, H, W)``, float in [0, 1], and stay so. The formulas are those of torchvision's functions of the same
names, which change a whole batch by one amount. ``out`` may be the images themselves: fresh memory costs the CPU more
than the arithmetic.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LUMA = (0.2989, 0.587, 0.114)


def grey(images: Tensor) -> Tensor:
    """Brightness as eyes see it: ``(B, 1, H, W)``."""
    red, green, blue = images.chunk(3, dim=1)
    return (red * _LUMA[0]).add_(green, alpha=_LUMA[1]).add_(blue, alpha=_LUMA[2])


def adjust_brightness(images: Tensor, factor: Tensor, out: Tensor | None = None) -> Tensor:
    """Multiplied by ``factor`` (B,): 0 is black, 1 changes nothing."""
    return torch.mul(images, _per_image(factor), out=out).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor, out: Tensor | None = None) -> Tensor:
    """Away from the image's mean grey by ``factor`` (B,): 0 is that grey, 1 changes nothing."""
    return _away(images, grey(images).mean(dim=(1, 2, 3), keepdim=True), factor, out)


def adjust_saturation(images: Tensor, factor: Tensor, out: Tensor | None = None) -> Tensor:
    """Away from each pixel's grey by ``factor`` (B,): 0 is a grey image, 1 changes nothing."""
    return _away(images, grey(images), factor, out)


def adjust_hue(images: Tensor, turn: Tensor, out: Tensor | None = None) -> Tensor:
    """The colour wheel turned by ``turn`` (B,), in turns: 1/3 makes red green; value and saturation stay.

    With the hue h in turns, the channels are ``value - chroma clamp(2 - 6 d, 0, 1)``, where d is how far ``h + n`` is
    from a whole turn, and n is 1/2, 1/6, -1/6 for red, green, blue.
    """
    value, chroma, hue = _value_chroma_hue(images)
    # 3, 1, -1 without a copy from the host, for which a GPU would be waited for
    n = torch.arange(3.0, -2.0, -2.0, device=images.device, dtype=images.dtype).view(3, 1, 1)
    # 5/2: half a turn on, and two more, so that the fraction is one of a positive number.
    distance = torch.add(hue, n / 6 + _per_image(turn) + 2.5, out=out).frac_().sub_(0.5).abs_()
    return distance.mul_(-6).add_(2).clamp_(0, 1).mul_(chroma).neg_().add_(value)


def _value_chroma_hue(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Largest channel, largest less smallest, hue in turns: ``(B, 1, H, W)`` each."""
    red, green, blue = images.chunk(3, dim=1)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    # Where red is largest (green - blue) / chroma, else where green is, 2 + (blue - red) / chroma, else
    # 4 + (red - green) / chroma, in sixths. Signs, 0 or 1, choose: torch.where is slow on the CPU.
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
