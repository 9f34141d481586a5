"""Exploration noise of deterministic actors."""

from __future__ import annotations

import torch
from pydantic import Field
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


class ActionNoise:
    """Noise process of a deterministic actor; its last value is stored in the policy's state under ``noise``.

    ``noise <- (1 - damping) noise + std * normal`` (Uhlenbeck & Ornstein 1930; as in DDPG, arXiv:1509.02971).
    """

    def __init__(self, config: ActionNoiseConfig) -> None:
        self.config = config

    def initial_state(self, batch_size: int, ac_dim: int, device: torch.device) -> InnerState:
        """Return no noise, zeros (B, A), for the start of an episode."""
        return {"noise": torch.zeros(batch_size, ac_dim, device=device)}

    def add_to(
        self, action: Tensor, state: InnerState, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the action (B, A) plus the next noise, clipped to [-1, 1], and that noise (B, A)."""
        fresh = fill_normal(torch.empty_like(action), generator)
        kept = state["noise"] * (1.0 - self.config.damping)
        noise = kept + self.config.std * fresh
        return (action + noise).clamp(-1.0, 1.0), noise
