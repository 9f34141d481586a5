"""Pooling over the pixels of feature maps."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from imitate.errors import ConfigError
from imitate.models.layout import Shape
from imitate.models.options import chosen, relevant


class SpatialSoftmax(nn.Module):
    """Expected image coordinates of feature maps (Finn et al., ICRA 2016, arXiv:1509.06113).

    Args:
        input_shape: (C, H, W).
        num_kp: number K of keypoints, from a 1x1 convolution; None for one keypoint per channel, without a convolution.
        temperature: temperature of the softmax over pixels.
        learnable_temperature: learn the temperature.
        output_variance: also return var x, cov x y and var y of each keypoint.
        noise_std: standard deviation of the noise added to coordinates in training; 0 for no noise.
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
        """Return ``(K, 2)``, or ``(K, 5)`` with variances."""
        return (self.num_kp, 5 if self.output_variance else 2)

    def keypoints(self, x: Tensor) -> Tensor:
        """Return keypoints ``(B, K, 2)`` of ``(B, C, H, W)`` without noise.

        x and y are in [-1, 1], where -1 and 1 are the centres of the outermost pixels.
        """
        return self._expected(self._attention(x))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, C, H, W)`` to keypoints ``(B, K, 2)``: x and y in [-1, 1]."""
        attention = self._attention(x)
        means = self._expected(attention)
        keypoints = means
        if self.training and self.noise_std > 0:
            keypoints = keypoints + torch.randn_like(keypoints) * self.noise_std
        if not self.output_variance:
            return keypoints
        x_mean, y_mean = means.unbind(-1)
        second = [(self.pos_x, self.pos_x), (self.pos_x, self.pos_y), (self.pos_y, self.pos_y)]
        firsts = [(x_mean, x_mean), (x_mean, y_mean), (y_mean, y_mean)]
        moments = [
            (attention * a * b).sum(-1) - mean_a * mean_b
            for (a, b), (mean_a, mean_b) in zip(second, firsts, strict=True)
        ]
        return torch.cat([keypoints, torch.stack(moments, dim=-1)], dim=-1)

    def _attention(self, x: Tensor) -> Tensor:
        weights: Tensor = (self.maps(x).flatten(2) / self.temperature).softmax(-1)
        return weights

    def _expected(self, attention: Tensor) -> Tensor:
        return torch.stack(
            [(attention * self.pos_x).sum(-1), (attention * self.pos_y).sum(-1)], dim=-1
        )


class SpatialMeanPool(nn.Module):
    """Mean of each channel over all pixels."""

    def __init__(self, input_shape: Shape) -> None:
        super().__init__()
        self.channels = input_shape[0]

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return ``(C,)``."""
        return (self.channels,)

    def forward(self, x: Tensor) -> Tensor:
        """Average ``(B, C, H, W)`` to ``(B, C)``."""
        return x.mean(dim=(-2, -1))


class AttentionPool(nn.Module):
    """Attention pooling with the pixels' mean as query (CLIP: Radford et al. 2021, arXiv:2103.00020).

    The pooling is one layer of multi-head attention with learned positions of the pixels.

    Args:
        input_shape: (C, H, W).
        num_heads: number of attention heads, a divisor of C.
    """

    def __init__(self, input_shape: Shape, num_heads: int = 8) -> None:
        super().__init__()
        channels, height, width = input_shape
        if channels % num_heads:
            raise ConfigError(
                f"pool_kwargs.num_heads is {num_heads}, which does not divide the {channels} channels of the trunk; "
                "expected a divisor"
            )
        self.channels, self.num_heads = channels, num_heads
        self.places = nn.Parameter(torch.randn(height * width + 1, channels) / channels**0.5)
        self.query = nn.Linear(channels, channels)
        self.key_value = nn.Linear(channels, 2 * channels)
        self.output = nn.Linear(channels, channels)

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return ``(C,)``."""
        return (self.channels,)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, C, H, W)`` to ``(B, C)``."""
        tokens = x.flatten(2).transpose(1, 2)
        tokens = torch.cat([tokens.mean(1, keepdim=True), tokens], dim=1) + self.places
        key, value = self.key_value(tokens).chunk(2, dim=-1)
        query = self.query(tokens[:, :1])
        answer = _attended(query, key, value, self.num_heads)
        pooled: Tensor = self.output(answer.transpose(1, 2).flatten(1))
        return pooled


class QueryPool(nn.Module):
    """Attention pooling by learned queries (Set Transformer: Lee et al., ICML 2019, arXiv:1810.00825).

    Cells are normalized (LayerNorm) and attended to by multi-head cross-attention with learned positions. This suits
    patches of frozen transformers, because the relevant parts of an image are learned here, not in the trunk.

    Args:
        input_shape: (C, H, W).
        num_queries: Q, number of learned queries.
        query_dim: D, features of each query and output; divisible by ``num_heads``.
        num_heads: number of attention heads.
    """

    def __init__(
        self,
        input_shape: Shape,
        num_queries: int = 4,
        query_dim: int = 128,
        num_heads: int = 8,
    ) -> None:
        super().__init__()
        channels, height, width = input_shape
        if query_dim % num_heads:
            raise ConfigError(
                f"pool_kwargs.num_heads is {num_heads}, which does not divide pool_kwargs.query_dim {query_dim}; "
                "change one of them"
            )
        self.num_heads = num_heads
        self.queries = nn.Parameter(torch.randn(num_queries, query_dim) / query_dim**0.5)
        self.places = nn.Parameter(0.02 * torch.randn(height * width, channels))
        self.norm = nn.LayerNorm(channels)
        self.key_value = nn.Linear(channels, 2 * query_dim)
        self.output = nn.Linear(query_dim, query_dim)

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return ``(Q, D)``."""
        return (self.queries.shape[0], self.queries.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, C, H, W)`` to ``(B, Q, D)``."""
        cells = self.norm(x.flatten(2).transpose(1, 2)) + self.places
        key, value = self.key_value(cells).chunk(2, dim=-1)
        query = self.queries.expand(len(x), -1, -1)
        answer = _attended(query, key, value, self.num_heads)
        pooled: Tensor = self.output(answer.transpose(1, 2).flatten(2))
        return pooled


def _attended(query: Tensor, key: Tensor, value: Tensor, num_heads: int) -> Tensor:
    """Compute multi-head attention: queries ``(B, Q, D)``, keys and values ``(B, N, D)`` to ``(B, heads, Q, d)``."""

    def heads(tokens: Tensor) -> Tensor:
        return tokens.reshape(*tokens.shape[:-1], num_heads, -1).transpose(1, 2)

    answer: Tensor = nn.functional.scaled_dot_product_attention(
        heads(query), heads(key), heads(value)
    )
    return answer


POOLS: dict[str, Any] = {
    "SpatialSoftmax": SpatialSoftmax,
    "SpatialMeanPool": SpatialMeanPool,
    "AttentionPool": AttentionPool,
    "QueryPool": QueryPool,
}


def make_pool(
    pool_class: str | None, pool_kwargs: Mapping[str, Any] | None, shape: Shape
) -> tuple[nn.Module, Shape]:
    """Build a pooling by its name for features (C, H, W); return the module and the shape of its output."""
    if pool_class is None:
        return nn.Identity(), shape
    kind = chosen(POOLS, pool_class, "pool_class")
    options = relevant(POOLS, kind, pool_kwargs, "pool_kwargs")
    pool = kind(**{**options, "input_shape": shape})
    return pool, pool.output_shape(shape)
