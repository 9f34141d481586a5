"""Image encoders: a convolutional trunk, pooling over space, a linear map.

Departures from robomimic: ``ShallowConv`` heeds ``output_channel``; ``output_variance`` of the spatial
softmax works inside ``VisualCore``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from imitate.errors import ConfigError
from imitate.models.layout import Shape
from imitate.models.options import chosen, relevant


class CoordConv2d(nn.Conv2d):
    """Convolution that sees where it is: two more input channels, y and x in [0, 1).

    Liu et al., NeurIPS 2018 (arXiv:1807.03247).
    """

    def __init__(self, in_channels: int, out_channels: int, **kwargs: Any) -> None:
        super().__init__(in_channels + 2, out_channels, **kwargs)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, H, W)``."""
        return super().forward(with_coordinates(x))


def with_coordinates(x: Tensor) -> Tensor:
    """``(B, C, H, W)`` with two more channels: row / H and column / W."""
    batch, _, height, width = x.shape
    rows = torch.arange(height, device=x.device, dtype=x.dtype) / height
    columns = torch.arange(width, device=x.device, dtype=x.dtype) / width
    grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"))
    return torch.cat([x, grid.expand(batch, -1, -1, -1)], dim=1)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_channels != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, H, W)`` to ``(B, channels, H / stride, W / stride)``."""
        shortcut = x if self.downsample is None else self.downsample(x)
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + shortcut)


class ResNet18Conv(nn.Module):
    """The convolutional part of ResNet-18, 1/32 of the resolution; names of weights are torchvision's.

    He et al., CVPR 2016 (arXiv:1512.03385).

    Args:
        input_channel: channels of the image.
        pretrained: must be false; weights of ImageNet are not fetched.
        input_coord_conv: the first convolution sees pixel coordinates too.
    """

    def __init__(
        self, input_channel: int = 3, pretrained: bool = False, input_coord_conv: bool = False
    ) -> None:
        super().__init__()
        if pretrained:
            raise ConfigError(
                "backbone_kwargs.pretrained is true, but weights are not fetched from the internet; set it to false"
            )
        first = CoordConv2d if input_coord_conv else nn.Conv2d
        self.conv1 = first(input_channel, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = self._layer(64, 64, stride=1)
        self.layer2 = self._layer(64, 128, stride=2)
        self.layer3 = self._layer(128, 256, stride=2)
        self.layer4 = self._layer(256, 512, stride=2)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @staticmethod
    def _layer(in_channels: int, channels: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            BasicBlock(in_channels, channels, stride), BasicBlock(channels, channels, 1)
        )

    def output_shape(self, input_shape: Shape) -> Shape:
        """``(C, H, W)`` to ``(512, H / 32, W / 32)``, rounded up."""
        _, height, width = input_shape
        return (512, math.ceil(height / 32), math.ceil(width / 32))

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, H, W)``."""
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
        return x


class ShallowConv(nn.Module):
    """Four convolutions, half the resolution. (Finn et al., ICRA 2016, arXiv:1509.06113.).

    Args:
        input_channel: channels of the image.
        output_channel: channels of the features.
    """

    def __init__(self, input_channel: int = 3, output_channel: int = 32) -> None:
        super().__init__()
        self.output_channel = output_channel
        self.layers = nn.Sequential(
            nn.Conv2d(input_channel, 64, kernel_size=7, stride=2, padding=3),
            nn.ReLU(),
            nn.Conv2d(64, 32, kernel_size=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, output_channel, kernel_size=3, padding=1),
        )

    def output_shape(self, input_shape: Shape) -> Shape:
        """``(C, H, W)`` to ``(output_channel, H / 2, W / 2)``, rounded up."""
        _, height, width = input_shape
        return (self.output_channel, math.ceil(height / 2), math.ceil(width / 2))

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, H, W)``."""
        y: Tensor = self.layers(x)
        return y


class SpatialSoftmax(nn.Module):
    """Expected image coordinates of feature maps. (Finn et al., ICRA 2016, arXiv:1509.06113.).

    Args:
        input_shape: (C, H, W).
        num_kp: keypoints K, from a 1x1 convolution; None takes the C channels as they are.
        temperature: of the softmax over pixels.
        learnable_temperature: learn it.
        output_variance: give var x, cov x y and var y of each keypoint too.
        noise_std: standard deviation of noise added to the coordinates in training.
    """

    pos_x: Tensor
    pos_y: Tensor

    def __init__(
        self,
        input_shape: Shape,
        num_kp: int | None = 32,
        temperature: float = 1.0,
        learnable_temperature: bool = False,
        output_variance: bool = False,
        noise_std: float = 0.0,
    ) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.num_kp = channels if num_kp is None else num_kp
        self.maps = nn.Identity() if num_kp is None else nn.Conv2d(channels, num_kp, 1)
        start = torch.full((1,), float(temperature))
        if learnable_temperature:
            self.temperature = nn.Parameter(start)
        else:
            self.register_buffer("temperature", start)
        self.output_variance = output_variance
        self.noise_std = noise_std
        grid_y, grid_x = torch.meshgrid(
            torch.linspace(-1.0, 1.0, height), torch.linspace(-1.0, 1.0, width), indexing="ij"
        )
        self.register_buffer("pos_x", grid_x.flatten())
        self.register_buffer("pos_y", grid_y.flatten())

    def output_shape(self, input_shape: Shape) -> Shape:
        """``(K, 2)``, or ``(K, 5)`` with variances."""
        return (self.num_kp, 5 if self.output_variance else 2)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, H, W)`` to ``(B, K, 2)``: x and y in [-1, 1]."""
        attention = (self.maps(x).flatten(2) / self.temperature).softmax(-1)
        mean_x = (attention * self.pos_x).sum(-1)
        mean_y = (attention * self.pos_y).sum(-1)
        keypoints = torch.stack([mean_x, mean_y], dim=-1)
        if self.training and self.noise_std > 0:
            keypoints = keypoints + torch.randn_like(keypoints) * self.noise_std
        if not self.output_variance:
            return keypoints
        second = [(self.pos_x, self.pos_x), (self.pos_x, self.pos_y), (self.pos_y, self.pos_y)]
        means = [(mean_x, mean_x), (mean_x, mean_y), (mean_y, mean_y)]
        moments = [
            (attention * a * b).sum(-1) - mean_a * mean_b
            for (a, b), (mean_a, mean_b) in zip(second, means, strict=True)
        ]
        return torch.cat([keypoints, torch.stack(moments, dim=-1)], dim=-1)


class SpatialMeanPool(nn.Module):
    """Mean over pixels."""

    def __init__(self, input_shape: Shape) -> None:
        super().__init__()
        self.channels = input_shape[0]

    def output_shape(self, input_shape: Shape) -> Shape:
        """``(C,)``."""
        return (self.channels,)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, H, W)`` to ``(B, C)``."""
        return x.mean(dim=(-2, -1))


BACKBONES = {"ResNet18Conv": ResNet18Conv, "ShallowConv": ShallowConv}
POOLS = {"SpatialSoftmax": SpatialSoftmax, "SpatialMeanPool": SpatialMeanPool}


class VisualCore(nn.Module):
    """Trunk, pooling, flatten, linear map. No activation at the end.

    Args:
        input_shape: (C, H, W).
        backbone_class: name in :data:`BACKBONES`.
        pool_class: name in :data:`POOLS`, or None.
        backbone_kwargs: arguments of the trunk; those that belong to another trunk are left out.
        pool_kwargs: arguments of the pooling; likewise.
        flatten: give a vector.
        feature_dimension: size of that vector by a linear map; None for none.
    """

    def __init__(
        self,
        input_shape: Shape,
        backbone_class: str = "ResNet18Conv",
        pool_class: str | None = "SpatialSoftmax",
        backbone_kwargs: Mapping[str, Any] | None = None,
        pool_kwargs: Mapping[str, Any] | None = None,
        flatten: bool = True,
        feature_dimension: int | None = 64,
    ) -> None:
        super().__init__()
        trunk = chosen(BACKBONES, backbone_class, "backbone_class")
        options = relevant(BACKBONES, trunk, backbone_kwargs, "backbone_kwargs")
        self.backbone = trunk(**{**options, "input_channel": input_shape[0]})
        shape = self.backbone.output_shape(input_shape)
        self.pool, shape = make_pool(pool_class, pool_kwargs, shape)
        self.flatten = flatten
        self.linear, self.output_shape = make_linear(shape, flatten, feature_dimension)
        # The layout in which images come; halves the time of a single image on the CPU.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C, H, W)`` to ``(B, *output_shape)``."""
        x = self.pool(self.backbone(x))
        if self.flatten:
            x = x.flatten(1)
        y: Tensor = self.linear(x)
        return y


def make_pool(
    pool_class: str | None, pool_kwargs: Mapping[str, Any] | None, shape: Shape
) -> tuple[nn.Module, Shape]:
    """The pooling of that name for features (C, H, W), and the shape of its output."""
    if pool_class is None:
        return nn.Identity(), shape
    kind = chosen(POOLS, pool_class, "pool_class")
    options = relevant(POOLS, kind, pool_kwargs, "pool_kwargs")
    pool = kind(**{**options, "input_shape": shape})
    return pool, pool.output_shape(shape)


def make_linear(
    shape: Shape, flatten: bool, feature_dimension: int | None
) -> tuple[nn.Module, Shape]:
    """The linear map after pooling, and the shape of its output."""
    if feature_dimension is None:
        return nn.Identity(), (math.prod(shape),) if flatten else shape
    if not flatten:
        raise ConfigError(
            f"core_kwargs.feature_dimension is {feature_dimension}, which needs flatten true; "
            "set flatten to true or feature_dimension to null"
        )
    return nn.Linear(math.prod(shape), feature_dimension), (feature_dimension,)
