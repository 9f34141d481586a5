"""Common parts of transformers: rotary positions, sinusoidal positions, masks."""

import math

import torch
from torch import Tensor

from imitate.errors import ConfigError


def head_dim(embed_dim: int, num_heads: int) -> int:
    """Return the number of features of one attention head. Raises ConfigError if heads do not divide ``embed_dim``."""
    if embed_dim % num_heads:
        raise ConfigError(
            f"transformer: {num_heads} heads do not divide {embed_dim} features; expected a divisor"
        )
    return embed_dim // num_heads


def sinusoidal_positions(num_positions: int, dim: int) -> Tensor:
    """Compute alternating sines and cosines (Vaswani et al. 2017, arXiv:1706.03762): ``(num_positions, dim)``."""
    if dim % 2:
        raise ConfigError(f"sinusoidal positions: {dim} features; expected an even number")
    frequency = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
    angle = torch.arange(num_positions).unsqueeze(1) * frequency
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


def rotary_table(num_positions: int, dim: int, device: torch.device | str = "cpu") -> Tensor:
    """Compute cosines and sines for :func:`rotate`: ``(2, num_positions, dim / 2)``."""
    if dim % 2:
        raise ConfigError(f"rotary positions: {dim} features per head; expected an even number")
    frequency = torch.exp(torch.arange(0, dim, 2, device=device) * (-math.log(10000.0) / dim))
    angle = torch.arange(num_positions, device=device).unsqueeze(1) * frequency
    return torch.stack((angle.cos(), angle.sin()))


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotate queries or keys by their position, so that their product depends only on the distance.

    Su et al. 2021, arXiv:2104.09864; feature i is rotated together with feature i + dim / 2.

    Args:
        x: (..., T, dim).
        table: (2, T, dim / 2), rows of :func:`rotary_table`.
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = table[0], table[1]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


def causal_mask(num_steps: int, window: int, device: torch.device | str = "cpu") -> Tensor:
    """Return a mask (T, T), true where step i (row) attends to step j (column): i - window < j <= i."""
    step = torch.arange(num_steps, device=device)
    distance = step.unsqueeze(1) - step
    return (distance >= 0) & (distance < window)
