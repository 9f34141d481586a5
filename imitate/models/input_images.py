"""Preparation of images for a pretrained trunk: their size, and the normalization of their colours."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate


class ColourStatistics(NamedTuple):
    """Mean and standard deviation of red, green and blue in [0, 1]."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


IMAGENET = ColourStatistics((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class InputImages(nn.Module):
    """Resize images and normalize their colours.

    Args:
        channels: number of channels; the first three are colours if there are three or more.
        size: side of a square in pixels; None: the size is not changed.
        colours: colour statistics; None: colours are not normalized, nor are images without colours.
        mode: interpolation, 'bilinear' or 'bicubic', with antialiasing.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, channels: int, size: int | None, colours: ColourStatistics | None, mode: str
    ) -> None:
        super().__init__()
        self.size, self.mode = size, mode
        self.normalizes = colours is not None and channels >= 3
        if colours is not None and self.normalizes:
            others = channels - 3
            mean, std = (*colours.mean, *[0.0] * others), (*colours.std, *[1.0] * others)
            self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
            self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Resize ``(B, C, H, W)`` to ``(B, C, size, size)`` and normalize colours."""
        if self.size is not None and x.shape[-2:] != (self.size, self.size):
            x = interpolate(x, (self.size, self.size), mode=self.mode, antialias=True)
            if self.normalizes:
                x = x.clamp(0.0, 1.0)  # bicubic interpolation exceeds the range
        return (x - self.mean) / self.std if self.normalizes else x
