"""Noise with which deterministic actors practise."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from imitate.config import Section


class ActionNoiseConfig(Section):
    """Noise that is added to actions in practice, normalized units."""

    std: float = Field(0.1, ge=0, description="standard deviation of a step's noise")
    damping: float = Field(
        1.0,
        gt=0,
        le=1,
        description="of an Ornstein-Uhlenbeck process: noise keeps 1 - damping of itself from step "
        "to step; 1: steps are independent",
    )


def next_noise(
    previous: Tensor, config: ActionNoiseConfig, generator: torch.Generator | None = None
) -> Tensor:
    """The next noise, (B, A): ``(1 - damping) noise + std * normal`` (Uhlenbeck & Ornstein 1930; arXiv:1509.02971)."""
    fresh = torch.empty_like(previous).normal_(generator=generator)
    return previous * (1.0 - config.damping) + config.std * fresh
