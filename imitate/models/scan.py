"""Encoder of laser scans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from imitate.errors import ConfigError, nearest
from imitate.models.layout import Shape
from imitate.models.pools import make_pool
from imitate.models.visual import make_linear

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
        feature_dimension: size of the vector after a linear map; None: no linear map.
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
    """Build the layers; return them with the shape of their output."""
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
                f"conv_kwargs: a scan of {input_shape[1]} beams is too short for these layers"
            )
    seen = _seen([layer for layer in layers if isinstance(layer, nn.Conv1d)], input_shape[1])
    if 2 * seen < input_shape[1]:
        raise ConfigError(
            f"conv_kwargs: these layers use only {seen} of the {input_shape[1]} beams of a scan: "
            "choose strides that are no longer than the kernels, or more layers"
        )
    return nn.Sequential(*layers), (channels, length)


def _seen(layers: Sequence[nn.Conv1d], beams: int) -> int:
    """Return the number of beams that influence any output."""
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
