"""Decoder from features to observations: vectors by linear maps, images by transposed convolutions."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from imitate.models.layout import Shape
from imitate.models.mlp import MLP

CHANNELS = (64, 32, 16)
"""Number of channels before each transposed convolution; each of these doubles height and width."""


class ImageDecoder(nn.Module):
    """Map features (B, D) to images (B, C, H, W), by computing a larger image and cropping it."""

    def __init__(self, input_dim: int, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        scale = 2 ** len(CHANNELS)
        self.start = (CHANNELS[0], math.ceil(shape[1] / scale), math.ceil(shape[2] / scale))
        self.first = nn.Linear(input_dim, math.prod(self.start))
        widths = [*CHANNELS, shape[0]]
        self.layers = nn.ModuleList(
            nn.ConvTranspose2d(before, after, kernel_size=4, stride=2, padding=1)
            for before, after in zip(widths[:-1], widths[1:], strict=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Decode features (B, D)."""
        x = self.first(x).unflatten(-1, self.start)
        for layer in self.layers:
            x = layer(x.relu())
        return x[..., : self.shape[1], : self.shape[2]]


class ObservationDecoder(nn.Module):
    """Decoder of several observations from the same features.

    Args:
        input_dim: D, number of features.
        shapes: shape of each observation as networks see it.
        layer_dims: widths of the hidden layers before the linear maps and the convolutions.
    """

    def __init__(
        self, input_dim: int, shapes: Mapping[str, Shape], layer_dims: Sequence[int] = (256,)
    ) -> None:
        super().__init__()
        self.shapes = dict(shapes)
        self.trunk = MLP(input_dim, layer_dims)
        width = self.trunk.output_dim
        # a list instead of a dict, because an observation's key may not be a valid module name
        self.heads = nn.ModuleList(
            ImageDecoder(width, shape) if len(shape) == 3 else nn.Linear(width, math.prod(shape))
            for shape in self.shapes.values()
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Decode features (B, D) to observations {key: (B, ...)}."""
        hidden = self.trunk(x)
        return {
            key: head(hidden).unflatten(-1, shape) if len(shape) != 3 else head(hidden)
            for (key, shape), head in zip(self.shapes.items(), self.heads, strict=True)
        }

    def squared_errors(self, x: Tensor, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the squared errors (B,) of each observation, averaged over its numbers."""
        return {
            key: (made - obs[key]).square().flatten(1).mean(-1) for key, made in self(x).items()
        }


def joined_errors(errors: Mapping[str, Tensor]) -> Tensor:
    """Return the mean (B,) of the errors (B,) of several observations."""
    return torch.stack(list(errors.values())).mean(0)
