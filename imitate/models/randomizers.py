"""Augmentation of observations, on the device, for the whole batch at once.

Departures from robomimic: random crops reach the last row and column; ``pos_enc`` works in evaluation; Gaussian noise
is Gaussian; colours change only in training, with the same order of steps for all images of a batch and individual
amounts.

In colour augmentations each image has its own amount. Images are ``(B, 3, H, W)``, float in [0, 1], before and after.
The formulas are those of torchvision's functions of the same names, which use one amount for the whole batch. ``out``
may be the images themselves; allocating new memory costs the CPU more time than the arithmetic.
"""

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from imitate.errors import ConfigError
from imitate.functional.kernels import kernels_apply
from imitate.models.layout import Shape
from imitate.models.resnet import with_coordinates

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

    With the hue h in turns, the channels are ``value - chroma clamp(2 - 6 d, 0, 1)``, where d is the distance of ``h +
    n`` from a whole turn, and n is 1/2, 1/6, -1/6 for red, green, blue.
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


CACHED_IMAGES = 16
"""Number of images that are processed at a time on the CPU, so that they stay in its cache."""


class Randomizer(nn.Module, ABC):
    """Random change of a network's input in training, with one or more versions of each sample.

    Args:
        output_shape: shape of one output sample.
        num_versions: number of versions of each sample in training, whose features are averaged.
        shared_over_time: change all steps of a window by the same random amounts; if false, each step has its own, as
            in robomimic.

    Attributes:
        corner: row and column of the input at which the output begins in evaluation.
    """

    corner: tuple[int, int] = (0, 0)

    def __init__(
        self, output_shape: Shape, num_versions: int, shared_over_time: bool = False
    ) -> None:
        super().__init__()
        self.output_shape = output_shape
        self.num_versions = num_versions
        self.shared_over_time = shared_over_time

    def forward(self, x: Tensor, steps: int = 1) -> Tensor:
        """Map ``(B, ...)`` to ``(B n, *output_shape)`` in training, with the n versions of a sample next to each other.

        Args:
            x: the samples.
            steps: number of consecutive samples in ``x`` that form one window.
        """
        return self.randomize(x, steps) if self.training else self.evaluate(x)

    @abstractmethod
    def randomize(self, x: Tensor, steps: int) -> Tensor:
        """Map ``(B, ...)`` to ``(B n, *output_shape)`` randomly."""

    def evaluate(self, x: Tensor) -> Tensor:
        """Map ``(B, ...)`` to ``(B, *output_shape)`` without randomness."""
        return x

    def merge(self, features: Tensor) -> Tensor:
        """Average the features ``(B n, D)`` of the versions to ``(B, D)``."""
        if not self.training or self.num_versions == 1:
            return features
        return features.view(-1, self.num_versions, features.shape[-1]).mean(1)

    def draws(self, x: Tensor, steps: int) -> Tensor:
        """Draw a random number in [0, 1) for each version of each sample: ``(B n,)``."""
        if not self.shared_over_time or steps == 1:
            return torch.rand(len(x) * self.num_versions, device=x.device)
        windows = torch.rand(len(x) // steps, 1, self.num_versions, device=x.device)
        return windows.expand(-1, steps, -1).reshape(-1)


class CropRandomizer(Randomizer):
    """Random crops in training, whose features are averaged; the centre crop in evaluation.

    Args:
        input_shape: (C, H, W).
        crop_height: rows of a crop.
        crop_width: columns of a crop.
        num_crops: number of crops of each image in training.
        pos_enc: add two channels with the pixel's coordinates in the image.
        shared_over_time: crop all steps of a window at the same position.
        centre: rounding for odd margins: the centre crop begins at half the margin rounded down ('down'), or rounded
            half to even ('even'), as in torchvision and LeRobot.
    """

    def __init__(
        self,
        input_shape: Shape,
        crop_height: int = 76,
        crop_width: int = 76,
        num_crops: int = 1,
        pos_enc: bool = False,
        shared_over_time: bool = False,
        centre: Literal["down", "even"] = "down",
    ) -> None:
        if len(input_shape) != 3:
            raise ConfigError(f"CropRandomizer needs images (C, H, W), got shape {input_shape}")
        channels, height, width = input_shape
        if crop_height > height or crop_width > width:
            raise ConfigError(
                f"obs_randomizer_kwargs: a crop of {crop_height} x {crop_width} does not fit an image of "
                f"{height} x {width}; make crop_height and crop_width smaller"
            )
        shape = (channels + (2 if pos_enc else 0), crop_height, crop_width)
        super().__init__(shape, num_crops, shared_over_time)
        self.room = (height - crop_height, width - crop_width)
        if centre not in ("down", "even"):
            raise ConfigError(
                f"obs_randomizer_kwargs.centre is '{centre}'; expected 'down' or 'even'"
            )
        half = round if centre == "even" else math.floor
        self.corner = (half(self.room[0] / 2), half(self.room[1] / 2))
        self.crop = (crop_height, crop_width)
        self.pos_enc = pos_enc

    def randomize(self, x: Tensor, steps: int) -> Tensor:
        """Crop ``(B, C, H, W)`` randomly to ``(B num_crops, C, h, w)``."""
        top, left = (
            (self.draws(x, steps) * (room + 1)).long().clamp_max(room) for room in self.room
        )
        return crops_at(self._input(x), top, left, *self.crop)

    def evaluate(self, x: Tensor) -> Tensor:
        """Crop ``(B, C, H, W)`` at the centre to ``(B, C, h, w)``."""
        (top, left), (height, width) = self.corner, self.crop
        return self._input(x)[..., top : top + height, left : left + width]

    def _input(self, x: Tensor) -> Tensor:
        return with_coordinates(x) if self.pos_enc else x


class ColorRandomizer(Randomizer):
    """Brightness, contrast, saturation and hue, in random order, in training.

    Args:
        input_shape: (3, H, W), values in [0, 1].
        brightness: b: factors from max(0, 1 - b) to 1 + b; or (smallest, largest); None for no change.
        contrast: range of the contrast, as for ``brightness``.
        saturation: range of the saturation, as for ``brightness``.
        hue: h: rotations of the colour wheel from -h to h, at most half a turn; or (smallest, largest); None for no
            change.
        num_samples: number of versions of each sample, whose features are averaged.
        shared_over_time: change all steps of a window by the same random amounts.
    """

    def __init__(
        self,
        input_shape: Shape,
        brightness: float | tuple[float, float] | None = 0.3,
        contrast: float | tuple[float, float] | None = 0.3,
        saturation: float | tuple[float, float] | None = 0.3,
        hue: float | tuple[float, float] | None = 0.3,
        num_samples: int = 1,
        shared_over_time: bool = False,
    ) -> None:
        if len(input_shape) != 3 or input_shape[0] != 3:
            raise ConfigError(
                f"ColorRandomizer needs images of 3 channels, got shape {input_shape}; list a CropRandomizer with "
                "pos_enc after it"
            )
        super().__init__(input_shape, num_samples, shared_over_time)
        ranges = {
            adjust_brightness: _factors("brightness", brightness),
            adjust_contrast: _factors("contrast", contrast),
            adjust_saturation: _factors("saturation", saturation),
            adjust_hue: _turns(hue),
        }
        self.ranges = [(step, limits) for step, limits in ranges.items() if limits is not None]

    @torch.no_grad()
    def randomize(self, x: Tensor, steps: int) -> Tensor:
        """Map ``(B, 3, H, W)`` to randomly coloured ``(B num_samples, 3, H, W)``."""
        # contiguous colour planes make the following arithmetic three times as fast as interleaved colours
        out = torch.empty(
            (len(x) * self.num_versions, *x.shape[1:]), device=x.device, dtype=x.dtype
        )
        out.view(-1, self.num_versions, *x.shape[1:]).copy_(x.unsqueeze(1))
        together = CACHED_IMAGES if x.device.type == "cpu" else max(1, len(out))
        for number in torch.randperm(len(self.ranges)).tolist():
            step, (low, high) = self.ranges[number]
            amounts = (low + (high - low) * self.draws(x, steps)).to(x.dtype)
            for images, amount in zip(
                torch.split(out, together), torch.split(amounts, together), strict=True
            ):
                step(images, amount, out=images)
        return out


def _factors(name: str, amount: float | tuple[float, float] | None) -> tuple[float, float] | None:
    if amount is None:
        return None
    low, high = (
        (max(0.0, 1.0 - amount), 1.0 + amount) if isinstance(amount, int | float) else amount
    )
    if not 0 <= low <= high:
        raise ConfigError(
            f"obs_randomizer_kwargs.{name} is {amount}; expected a number, at least 0, or [least, most], both at "
            "least 0"
        )
    return (low, high)


def _turns(amount: float | tuple[float, float] | None) -> tuple[float, float] | None:
    if amount is None:
        return None
    low, high = (-amount, amount) if isinstance(amount, int | float) else amount
    if not -0.5 <= low <= high <= 0.5:
        raise ConfigError(
            f"obs_randomizer_kwargs.hue is {amount}; expected a number from 0 to 0.5, or [least, most] from -0.5 to 0.5"
        )
    return (low, high)


class GaussianNoiseRandomizer(Randomizer):
    """Gaussian noise, added in training.

    Args:
        input_shape: shape of one sample.
        noise_mean: mean of the noise.
        noise_std: standard deviation of the noise.
        limits: (low, high) to which the result is clamped; None for no limits.
        num_samples: number of noisy versions of each sample, whose features are averaged.
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

    def randomize(self, x: Tensor, steps: int) -> Tensor:
        """Add noise to ``(B, ...)``: ``(B num_samples, ...)``. The noise is always independent over time."""
        x = x.repeat_interleave(self.num_versions, dim=0)
        x = x + torch.randn_like(x) * self.noise_std + self.noise_mean
        return x if self.limits is None else x.clamp(*self.limits)


def crops_at(x: Tensor, top: Tensor, left: Tensor, height: int, width: int) -> Tensor:
    """Return crops of ``(B, C, H, W)`` with the given first rows and columns ``(B n,)``: ``(B n, C, height, width)``.

    Each n consecutive positions belong to the same image.
    """
    if (
        kernels_apply()
        and x.device.type == "cpu"
        and x.dtype is torch.float32
        and not x.requires_grad
    ):
        return _copied_crops(x, top.tolist(), left.tolist(), height, width)
    image = torch.arange(x.shape[0], device=x.device).repeat_interleave(len(top) // x.shape[0])
    # all windows of every image, without copies: (B, C, rows, columns, height, width)
    windows = x.unfold(2, height, 1).unfold(3, width, 1)
    return windows[image, :, top, left]


def _copied_crops(x: Tensor, top: list[int], left: list[int], height: int, width: int) -> Tensor:
    """Compute :func:`crops_at` with a copy per crop, three times as fast as torch's indexing but without gradients."""
    last = x.is_contiguous(memory_format=torch.channels_last)
    order = torch.channels_last if last else torch.contiguous_format
    shape = (len(top), x.shape[1], height, width)
    crops = torch.empty(shape, dtype=x.dtype, memory_format=order)
    images, results = x.detach().numpy(), crops.numpy()
    versions = len(top) // len(x)
    for number, (row, column) in enumerate(zip(top, left, strict=True)):
        image = images[number // versions]
        results[number] = image[:, row : row + height, column : column + width]
    return crops
