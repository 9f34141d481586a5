"""Embedding of the denoising step, which is an input of denoising networks."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from imitate.errors import ConfigError


class SinusoidalEmbedding(nn.Module):
    """Sines and cosines of a number at frequencies from 1 down to 1/10000.

    The scale of the number matters: numbers that differ by 1 get distinct embeddings. Use diffusion steps unscaled, and
    multiply times in [0, 1] by 100 or 1000 first.

    Args:
        dim: number of features, half sines and half cosines; even, at least 4.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim < 4 or dim % 2:
            raise ConfigError(f"step embedding: got {dim} features; expected an even number from 4")
        self.dim = dim

    def forward(self, step: Tensor) -> Tensor:
        """Embed steps ``(*B)`` as ``(*B, dim)``."""
        half = self.dim // 2
        exponent = torch.arange(half, device=step.device, dtype=torch.float32)
        frequency = torch.exp(exponent * (-math.log(10000.0) / (half - 1)))
        angle = step.unsqueeze(-1) * frequency
        return torch.cat((angle.sin(), angle.cos()), dim=-1)


def step_encoder(dim: int, output_dim: int) -> nn.Sequential:
    """Build the embedding of the step and two layers over it: ``(*B)`` to ``(*B, output_dim)``."""
    return nn.Sequential(
        SinusoidalEmbedding(dim),
        nn.Linear(dim, dim * 4),
        nn.Mish(),
        nn.Linear(dim * 4, output_dim),
    )


def steps_like(step: Tensor | float, sample: Tensor) -> Tensor:
    """Return the step of each row of ``sample`` (B, ...) as a float tensor (B,), from one number or (B,)."""
    steps = torch.as_tensor(step, dtype=torch.float32, device=sample.device)
    return steps.expand(sample.shape[0])
