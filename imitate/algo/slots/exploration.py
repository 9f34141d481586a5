"""Exploration noise of deterministic actors."""

from __future__ import annotations

import torch
from pydantic import Field, field_validator
from torch import Tensor

from imitate.algo.base.policy_state import InnerState
from imitate.config import Section
from imitate.functional.sampling import fill_normal


class ActionNoiseConfig(Section):
    """Noise added to the actions of rollouts in online RL, in normalized units."""

    std: float = Field(0.1, ge=0, description="standard deviation of the noise added in each step")
    damping: float = Field(
        1.0,
        gt=0,
        le=1,
        description="damping of an Ornstein-Uhlenbeck process: the fraction 1 - damping of the "
        "noise is kept from step to step; 1: independent steps",
    )
    end_std: float | None = Field(
        None, ge=0, description="standard deviation at the end of the training; null: ``std``"
    )
    fall: tuple[float, float] = Field(
        (0.0, 1.0),
        description="fractions of the training between which the standard deviation is annealed "
        "linearly from ``std`` to ``end_std``",
    )

    @field_validator("fall")
    @classmethod
    def _in_order(cls, fall: tuple[float, float]) -> tuple[float, float]:
        if not 0.0 <= fall[0] <= fall[1] <= 1.0:
            raise ValueError("begin and end of the annealing must satisfy 0 <= begin <= end <= 1")
        return fall

    def std_at(self, progress: float) -> float:
        """Return the standard deviation after the fraction ``progress`` in [0, 1] of the training."""
        begin, end = self.fall
        if self.end_std is None or progress < begin:
            return self.std
        if progress >= end:
            return self.end_std
        return self.std + (progress - begin) / (end - begin) * (self.end_std - self.std)


class ActionNoise:
    """Noise process of a deterministic actor; its last value is stored in the policy's state under ``noise``.

    ``noise <- (1 - damping) noise + std * normal`` (Uhlenbeck & Ornstein 1930; as in DDPG, arXiv:1509.02971).

    Attributes:
        progress: finished fraction of the training, in [0, 1], by which the standard deviation is annealed.
    """

    def __init__(self, config: ActionNoiseConfig) -> None:
        self.config = config
        self.progress = 0.0

    def initial_state(self, batch_size: int, ac_dim: int, device: torch.device) -> InnerState:
        """Return no noise, zeros (B, A), for the start of an episode."""
        return {"noise": torch.zeros(batch_size, ac_dim, device=device)}

    def add_to(
        self, action: Tensor, state: InnerState, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the action (B, A) plus the next noise, clipped to [-1, 1], and that noise (B, A)."""
        fresh = fill_normal(torch.empty_like(action), generator)
        kept = state["noise"] * (1.0 - self.config.damping)
        noise = kept + self.config.std_at(self.progress) * fresh
        return (action + noise).clamp(-1.0, 1.0), noise
