"""Augmentation of observations, on the device, for the whole batch at once.

Departures from robomimic: random crops reach the last row and column; ``pos_enc`` works in evaluation;
Gaussian noise is Gaussian.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from imitate.errors import ConfigError
from imitate.models.layout import Shape
from imitate.models.visual import with_coordinates


class Randomizer(nn.Module, ABC):
    """Changes the input of a network in training; it may make several versions of each sample.

    Args:
        output_shape: of one sample.
        num_versions: versions of each sample in training, whose features are averaged.
    """

    def __init__(self, output_shape: Shape, num_versions: int) -> None:
        super().__init__()
        self.output_shape = output_shape
        self.num_versions = num_versions

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """``(B, ...)`` to ``(B n, *output_shape)``, versions of one sample next to each other."""

    def merge(self, features: Tensor) -> Tensor:
        """``(B n, D)`` features of the versions to their mean ``(B, D)``."""
        if not self.training or self.num_versions == 1:
            return features
        return features.view(-1, self.num_versions, features.shape[-1]).mean(1)


class CropRandomizer(Randomizer):
    """Random crops in training, whose features are averaged; the centre crop in evaluation.

    Args:
        input_shape: (C, H, W).
        crop_height: rows of a crop.
        crop_width: columns of a crop.
        num_crops: crops of each image in training.
        pos_enc: two more channels tell where in the image a pixel was.
    """

    def __init__(
        self,
        input_shape: Shape,
        crop_height: int = 76,
        crop_width: int = 76,
        num_crops: int = 1,
        pos_enc: bool = False,
    ) -> None:
        if len(input_shape) != 3:
            raise ConfigError(f"CropRandomizer wants images, got shape {input_shape}")
        channels, height, width = input_shape
        if crop_height > height or crop_width > width:
            raise ConfigError(
                f"obs_randomizer_kwargs: a crop of {crop_height} x {crop_width} does not fit an image of "
                f"{height} x {width}; make crop_height and crop_width smaller"
            )
        super().__init__((channels + (2 if pos_enc else 0), crop_height, crop_width), num_crops)
        self.crop = (crop_height, crop_width)
        self.pos_enc = pos_enc

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, H, W)`` to ``(B num_crops, C, h, w)``."""
        if self.pos_enc:
            x = with_coordinates(x)
        if self.training:
            return random_crops(x, *self.crop, self.num_versions)
        return centre_crop(x, *self.crop)


class GaussianNoiseRandomizer(Randomizer):
    """Adds Gaussian noise in training.

    Args:
        input_shape: of one sample.
        noise_mean: mean.
        noise_std: standard deviation.
        limits: (low, high) that the result is clamped to; None for no clamp.
        num_samples: noisy versions of each sample, whose features are averaged.
    """

    def __init__(
        self,
        input_shape: Shape,
        noise_mean: float = 0.0,
        noise_std: float = 0.3,
        limits: tuple[float, float] | None = None,
        num_samples: int = 1,
    ) -> None:
        super().__init__(input_shape, num_samples)
        self.noise_mean = noise_mean
        self.noise_std = noise_std
        self.limits = limits

    def forward(self, x: Tensor) -> Tensor:
        """``(B, ...)`` to ``(B num_samples, ...)``."""
        if not self.training:
            return x
        x = x.repeat_interleave(self.num_versions, dim=0)
        x = x + torch.randn_like(x) * self.noise_std + self.noise_mean
        return x if self.limits is None else x.clamp(*self.limits)


def random_crops(x: Tensor, height: int, width: int, num_crops: int = 1) -> Tensor:
    """Crops at uniformly random places: ``(B, C, H, W)`` to ``(B num_crops, C, height, width)``."""
    count = x.shape[0] * num_crops
    device = x.device
    top = torch.randint(x.shape[-2] - height + 1, (count, 1, 1), device=device)
    left = torch.randint(x.shape[-1] - width + 1, (count, 1, 1), device=device)
    image = torch.arange(x.shape[0], device=device).repeat_interleave(num_crops)[:, None, None]
    rows = top + torch.arange(height, device=device)[:, None]
    columns = left + torch.arange(width, device=device)
    # Channels last: one index per pixel, and the layout that convolutions like.
    return x.permute(0, 2, 3, 1)[image, rows, columns].permute(0, 3, 1, 2)


def centre_crop(x: Tensor, height: int, width: int) -> Tensor:
    """``(..., H, W)`` to ``(..., height, width)``."""
    top, left = (x.shape[-2] - height) // 2, (x.shape[-1] - width) // 2
    return x[..., top : top + height, left : left + width]
