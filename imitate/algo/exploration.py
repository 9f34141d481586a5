"""Noise with which deterministic actors practise."""

from __future__ import annotations

import torch
from pydantic import Field, field_validator
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
    end_std: float | None = Field(
        None, ge=0, description="the standard deviation of a step's noise at last; null: ``std``"
    )
    fall: tuple[float, float] = Field(
        (0.0, 1.0),
        description="parts of the training at which ``std`` begins to fall, linearly, and reaches "
        "``end_std``",
    )

    @field_validator("fall")
    @classmethod
    def _in_order(cls, fall: tuple[float, float]) -> tuple[float, float]:
        if not 0.0 <= fall[0] <= fall[1] <= 1.0:
            raise ValueError("begin and end of the fall are 0 <= begin <= end <= 1")
        return fall

    def std_at(self, progress: float) -> float:
        """The standard deviation when this part of the training, in [0, 1], is over."""
        begin, end = self.fall
        if self.end_std is None or progress < begin:
            return self.std
        if progress >= end:
            return self.end_std
        return self.std + (progress - begin) / (end - begin) * (self.end_std - self.std)


def next_noise(
    previous: Tensor,
    config: ActionNoiseConfig,
    progress: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The next noise, (B, A): ``(1 - damping) noise + std * normal`` (Uhlenbeck & Ornstein 1930; arXiv:1509.02971).

    Args:
        previous: (B, A) the last noise; zeros at the start of an episode.
        config: damping and standard deviation.
        progress: which part of the training is over, in [0, 1].
        generator: of the draws; None: torch's own.
    """
    fresh = torch.empty_like(previous).normal_(generator=generator)
    return previous * (1.0 - config.damping) + config.std_at(progress) * fresh
