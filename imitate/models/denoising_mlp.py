"""Denoiser of short action chunks without convolutions, and the embedding of the noise level.

It is a residual MLP to which the condition is added. It is far cheaper than a U-Net, and sufficient for low-dimensional
tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
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


class ResidualBlock(nn.Module):
    """LayerNorm, Linear, SiLU, dropout, Linear, added to the input."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.inner = nn.Linear(dim, dim)
        self.outer = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, dim)`` to ``(B, dim)``."""
        return x + cast(Tensor, self.outer(self.dropout(F.silu(self.inner(self.norm(x))))))


class DenoisingMLP(nn.Module):
    """Predict a chunk from a noisy one, the step and the observation.

    Inputs and outputs are those of :class:`~imitate.models.unet.ConditionalUnet1D`.

    Args:
        input_dim: A, number of values of a noisy action.
        chunk_steps: T, the fixed number of actions in a chunk.
        global_cond_dim: D, number of features of the observation; 0 for none.
        hidden_dim: width of the layers.
        num_blocks: number of residual blocks, which have two layers each.
        step_embed_dim: number of features of the step's embedding.
        dropout: dropout inside the blocks.
        output_dim: number of values of a predicted action; A by default.
    """

    def __init__(
        self,
        input_dim: int,
        chunk_steps: int,
        global_cond_dim: int = 0,
        *,
        hidden_dim: int = 512,
        num_blocks: int = 3,
        step_embed_dim: int = 64,
        dropout: float = 0.0,
        output_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.step_encoder = step_encoder(step_embed_dim, hidden_dim)
        self.condition = nn.Linear(global_cond_dim, hidden_dim) if global_cond_dim else None
        self.enter = nn.Linear(input_dim * chunk_steps, hidden_dim)
        self.blocks = nn.ModuleList(ResidualBlock(hidden_dim, dropout) for _ in range(num_blocks))
        self.norm = nn.LayerNorm(hidden_dim)
        self.leave = nn.Linear(hidden_dim, (output_dim or input_dim) * chunk_steps)

    def forward(
        self, sample: Tensor, timestep: Tensor | float, global_cond: Tensor | None = None
    ) -> Tensor:
        """Predict from noisy actions.

        Args:
            sample: (B, T, A) noisy actions.
            timestep: (B,) or one number for all rows; see
                :class:`~imitate.models.denoising_mlp.SinusoidalEmbedding` about its scale.
            global_cond: (B, D) features of the observation.

        Returns:
            (B, T, output_dim) predictions.
        """
        of_step = self.step_encoder(steps_like(timestep, sample))
        return self.denoise(sample, self._with_obs(of_step, global_cond))

    def conditions(
        self, timesteps: Sequence[float], global_cond: Tensor | None
    ) -> dict[float, Tensor]:
        """Compute the conditions of all steps of one sampling at once, for :meth:`denoise`."""
        return dict(zip(timesteps, self.stacked(timesteps, global_cond).unbind(0), strict=True))

    def stacked(self, timesteps: Sequence[float], global_cond: Tensor | None) -> Tensor:
        """Return :meth:`conditions` as one tensor (S, B, D) for S steps."""
        steps = torch.tensor(list(timesteps), dtype=torch.float32, device=self.enter.weight.device)
        return self._with_obs(self.step_encoder(steps).unsqueeze(1), global_cond)

    def _with_obs(self, of_step: Tensor, global_cond: Tensor | None) -> Tensor:
        return of_step if self.condition is None else of_step + self.condition(global_cond)

    def denoise(self, sample: Tensor, condition: Tensor) -> Tensor:
        """Predict from a condition of :meth:`conditions`: ``(B, T, A)`` to ``(B, T, output_dim)``."""
        x = self.enter(sample.flatten(1)) + condition
        for block in self.blocks:
            x = block(x)
        return cast(Tensor, self.leave(self.norm(x)).unflatten(1, (sample.shape[1], -1)))
