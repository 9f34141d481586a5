"""Encoders of images and of laser scans: a convolutional trunk, pooling over space, a linear map.

Departures from robomimic: ``ShallowConv`` uses ``output_channel``; ``output_variance`` of the spatial
softmax works inside ``VisualCore``.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from imitate.errors import ConfigError, nearest
from imitate.models.layout import Shape
from imitate.models.options import chosen, relevant, supplied
from imitate.models.pools import SpatialMeanPool, SpatialSoftmax, make_pool
from imitate.models.resnet import (
    ResNet18Conv,
    ResNet18ConvFiLM,
    ResNet34Conv,
    ResNet34ConvFiLM,
    ResNet50Conv,
    ResNet50ConvFiLM,
)
from imitate.models.vit import VC1, DINOv2, SigLIP


class ShallowConv(nn.Module):
    """Four convolutions, half the resolution (Finn et al., ICRA 2016, arXiv:1509.06113).

    Args:
        input_channel: number of channels of the image.
        output_channel: number of channels of the features.
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
        """Return the output's shape ``(output_channel, H / 2, W / 2)``, rounded up, for an input ``(C, H, W)``."""
        _, height, width = input_shape
        return (self.output_channel, math.ceil(height / 2), math.ceil(width / 2))

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``(B, C, H, W)`` to features."""
        y: Tensor = self.layers(x)
        return y


BACKBONES: dict[str, Any] = {
    "ResNet18Conv": ResNet18Conv,
    "ResNet34Conv": ResNet34Conv,
    "ResNet50Conv": ResNet50Conv,
    "ResNet18ConvFiLM": ResNet18ConvFiLM,
    "ResNet34ConvFiLM": ResNet34ConvFiLM,
    "ResNet50ConvFiLM": ResNet50ConvFiLM,
    "DINOv2": DINOv2,
    "SigLIP": SigLIP,
    "VC1": VC1,
    "ShallowConv": ShallowConv,
}

_ELSEWHERE = {
    "R3MConv": "R3M is a ResNet: use ResNet18Conv, ResNet34Conv or ResNet50Conv with R3M's file in "
    "backbone_kwargs.pretrained and freeze true",
    "MVPConv": "MVP is a masked autoencoder: use VC1 with MVP's file in backbone_kwargs.pretrained and freeze true",
}


class VisualCore(nn.Module):
    """Trunk, pooling, flattening, linear map, without a final activation.

    Args:
        input_shape: (C, H, W).
        backbone_class: name in :data:`BACKBONES`; None for the class's default.
        pool_class: name in :data:`~imitate.models.pools.POOLS`, or None; "auto": SpatialSoftmax, or None if the trunk's
            output has a single position.
        backbone_kwargs: arguments of the trunk; arguments that only other trunks have are ignored.
        pool_kwargs: arguments of the pooling; arguments that only other poolings have are ignored.
        flatten: return a vector.
        feature_dimension: size of the vector after a linear map; None for no linear map.
        language_dim: size of the instruction's embedding, if there is one.
        default_norm: normalization layers of a trunk whose ``norm`` is null.
        load_pretrained: load pretrained weights; false if a checkpoint contains the weights.

    Attributes:
        frozen_shape: shape of a frozen trunk's features, which depend only on the image; None if the trunk is trained
            or sees the instruction.
    """

    default_backbone: ClassVar[str] = "ResNet18Conv"
    conditioned: ClassVar[bool] = False

    def __init__(
        self,
        input_shape: Shape,
        backbone_class: str | None = None,
        pool_class: str | None = "auto",
        backbone_kwargs: Mapping[str, Any] | None = None,
        pool_kwargs: Mapping[str, Any] | None = None,
        flatten: bool = True,
        feature_dimension: int | None = 64,
        language_dim: int | None = None,
        default_norm: str = "batch",
        load_pretrained: bool = True,
    ) -> None:
        super().__init__()
        backbone_class = backbone_class or self.default_backbone
        if backbone_class in _ELSEWHERE:
            raise ConfigError(f"backbone_class: {backbone_class}: {_ELSEWHERE[backbone_class]}")
        trunk = chosen(BACKBONES, backbone_class, "backbone_class")
        options = relevant(BACKBONES, trunk, backbone_kwargs, "backbone_kwargs")
        given = supplied(
            trunk,
            language_dim=language_dim,
            default_norm=default_norm,
            load_pretrained=load_pretrained,
        )
        self.backbone = trunk(**{**options, **given, "input_channel": input_shape[0]})
        self.uses_language: bool = getattr(trunk, "uses_language", False)
        if self.conditioned and not self.uses_language:
            fitting = ", ".join(name for name in BACKBONES if name.endswith("FiLM"))
            raise ConfigError(
                f"backbone_class is {backbone_class}, but {type(self).__name__} needs one of {fitting}"
            )
        trunk_shape = self.backbone.output_shape(input_shape)
        one_vector = getattr(self.backbone, "features", None) == "class"
        placeless = one_vector or min(trunk_shape[1:]) < 2
        if pool_class == "auto":
            pool_class = None if placeless else "SpatialSoftmax"
        if pool_class == "SpatialSoftmax" and one_vector:
            raise ConfigError(
                "backbone_kwargs.features is 'class', a single vector, but SpatialSoftmax needs several positions; set "
                "pool_class to null"
            )
        if pool_class == "SpatialSoftmax" and placeless:
            size, places = ("x".join(map(str, shape[1:])) for shape in (input_shape, trunk_shape))
            raise ConfigError(
                f"images of {size} pixels have only {places} positions after {backbone_class}, too few for the "
                "coordinates of SpatialSoftmax: use "
                "larger images (a step 'resize' in train.preprocess), backbone_class "
                "'ShallowConv', or pool_class null"
            )
        self.pool, shape = make_pool(pool_class, pool_kwargs, trunk_shape)
        self._pools_mean = isinstance(self.pool, SpatialMeanPool)
        frozen = getattr(self.backbone, "frozen", False) and not self.uses_language
        self.frozen_shape: Shape | None = None
        if frozen:
            self.frozen_shape = (trunk_shape[0], 1, 1) if self._pools_mean else trunk_shape
        self.flatten = flatten
        self.linear, self.output_shape = make_linear(shape, flatten, feature_dimension)
        # channels last is the layout in which images arrive, and halves the time of a single image on the CPU
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor, language: Tensor | None = None) -> Tensor:
        """Encode images ``(B, C, H, W)`` as ``(B, *output_shape)``.

        If the trunk uses language, embeddings ``(B, D)`` are needed too.
        """
        return self.from_features(self._features(x, language))

    def frozen_features(self, x: Tensor) -> Tensor:
        """Map images ``(B, C, H, W)`` to a frozen trunk's features ``(B, *frozen_shape)``."""
        features = self._features(x, None)
        # the mean of a map with one cell is that cell, so pooling twice changes nothing
        return features.mean((-2, -1), keepdim=True) if self._pools_mean else features

    def from_features(self, x: Tensor) -> Tensor:
        """Map features of the trunk to ``(B, *output_shape)``."""
        x = self.pool(x)
        if self.flatten:
            x = x.flatten(1)
        y: Tensor = self.linear(x)
        return y

    def keypoints(self, x: Tensor, language: Tensor | None = None) -> Tensor | None:
        """Return keypoints of a :class:`SpatialSoftmax`: ``(B, K, 2)``, x and y in [-1, 1].

        The result is None with another pooling.
        """
        if not isinstance(self.pool, SpatialSoftmax):
            return None
        return self.pool.keypoints(self._features(x, language))

    def _features(self, x: Tensor, language: Tensor | None) -> Tensor:
        features: Tensor = self.backbone(x, language) if self.uses_language else self.backbone(x)
        return features


class VisualCoreLanguageConditioned(VisualCore):
    """:class:`VisualCore` whose trunk is conditioned on the instruction by FiLM."""

    default_backbone = "ResNet18ConvFiLM"
    conditioned = True


def make_linear(
    shape: Shape, flatten: bool, feature_dimension: int | None
) -> tuple[nn.Module, Shape]:
    """Build the linear map after pooling; return it and the shape of its output."""
    if feature_dimension is None:
        return nn.Identity(), (math.prod(shape),) if flatten else shape
    if not flatten:
        raise ConfigError(
            f"core_kwargs.feature_dimension is {feature_dimension}, which needs flatten true; "
            "set flatten to true or feature_dimension to null"
        )
    return nn.Linear(math.prod(shape), feature_dimension), (feature_dimension,)


_PER_LAYER = ("out_channels", "kernel_size", "stride", "padding", "dilation")
_DEFAULTS = {"out_channels": (32, 64, 64), "kernel_size": (8, 4, 2), "stride": (4, 2, 1)}


class ScanCore(nn.Module):
    """Convolutions over the beams of a scan, pooling, flatten, linear map.

    Args:
        input_shape: (C, L).
        conv_kwargs: lists with one entry per layer: out_channels, kernel_size, stride, padding, dilation.
        conv_activation: 'relu' or None.
        pool_class: pooling over (C, L, 1), or None.
        pool_kwargs: arguments of the pooling.
        flatten: return a vector.
        feature_dimension: size of the vector after a linear map; None for no linear map.
    """

    def __init__(
        self,
        input_shape: Shape,
        conv_kwargs: Mapping[str, Any] | None = None,
        conv_activation: str | None = "relu",
        pool_class: str | None = None,
        pool_kwargs: Mapping[str, Any] | None = None,
        flatten: bool = True,
        feature_dimension: int | None = None,
    ) -> None:
        super().__init__()
        self.backbone, shape = _convolutions(input_shape, conv_kwargs or {}, conv_activation)
        self.pool: nn.Module | None = None
        if pool_class == "SpatialSoftmax" and shape[1] < 2:
            raise ConfigError(
                f"a scan of {input_shape[1]} beams has a single position after the layers of "
                "conv_kwargs, so SpatialSoftmax would always return the same coordinates: choose smaller strides, or "
                "set pool_class to null"
            )
        if pool_class is not None:
            self.pool, shape = make_pool(pool_class, pool_kwargs, (*shape, 1))
        self.flatten = flatten
        self.linear, self.output_shape = make_linear(shape, flatten, feature_dimension)

    def forward(self, x: Tensor) -> Tensor:
        """Encode scans ``(B, C, L)`` as ``(B, *output_shape)``."""
        x = self.backbone(x)
        if self.pool is not None:
            x = self.pool(x.unsqueeze(-1))
        if self.flatten:
            x = x.flatten(1)
        y: Tensor = self.linear(x)
        return y


def _convolutions(
    input_shape: Shape, conv_kwargs: Mapping[str, Any], activation: str | None
) -> tuple[nn.Sequential, Shape]:
    """Build the convolutions from ``conv_kwargs``; return them and the shape of their output."""
    for name in conv_kwargs:
        if name not in _PER_LAYER:
            raise ConfigError(f"conv_kwargs: unknown key '{name}'; {nearest(name, _PER_LAYER)}")
    if activation not in ("relu", None):
        raise ConfigError(f"conv_activation: unknown '{activation}'; expected 'relu' or null")
    options = {**_DEFAULTS, **conv_kwargs}
    if len({len(values) for values in options.values()}) != 1:
        lengths = ", ".join(f"{name} {len(values)}" for name, values in options.items())
        raise ConfigError(f"conv_kwargs: all lists need one entry per layer, got {lengths}")
    channels, length = input_shape
    layers: list[nn.Module] = []
    for values in zip(*options.values(), strict=True):
        layer = nn.Conv1d(channels, **dict(zip(options, values, strict=True)))
        layers.append(layer)
        if activation is not None:
            layers.append(nn.ReLU())
        channels, length = layer.out_channels, _length(layer, length)
        if length < 1:
            raise ConfigError(
                f"conv_kwargs: a scan of {input_shape[1]} beams is too short for these layers: choose fewer layers or "
                "smaller strides"
            )
    seen = _seen([layer for layer in layers if isinstance(layer, nn.Conv1d)], input_shape[1])
    if 2 * seen < input_shape[1]:
        raise ConfigError(
            f"conv_kwargs: these layers use only {seen} of the {input_shape[1]} beams of a scan: "
            "choose strides that are no longer than the kernels, or more layers"
        )
    return nn.Sequential(*layers), (channels, length)


def _seen(layers: Sequence[nn.Conv1d], beams: int) -> int:
    """Return the number of beams of a scan that influence the output of the convolutions."""
    lengths = [beams]
    for layer in layers:
        lengths.append(_length(layer, lengths[-1]))
    places = np.arange(lengths[-1])
    for layer, size in zip(reversed(layers), reversed(lengths[:-1]), strict=True):
        taps = np.arange(layer.kernel_size[0]) * layer.dilation[0] - int(layer.padding[0])
        places = np.unique(places[:, None] * layer.stride[0] + taps)
        places = places[(places >= 0) & (places < size)]
    return len(places)


def _length(layer: nn.Conv1d, length: int) -> int:
    padding, dilation = int(layer.padding[0]), layer.dilation[0]
    return (length + 2 * padding - dilation * (layer.kernel_size[0] - 1) - 1) // layer.stride[0] + 1
