"""Slot of an algorithm with critics: rewards in place of the environment's, computed when a batch is sampled.

A section names its source in ``reward_source``. So imitation without rewards is a section and a source, beside an
algorithm that learns from rewards: see ``sqil.py``, ``dac.py``. Rewards are never stored, so they are never stale.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from imitate.algo.algo import Batch, Info
from imitate.models.actor import GroupEncoder


class RewardSource(nn.Module, ABC):
    """Rewards of a batch of transitions, and the loss of the networks that they come from.

    Args:
        config: the algorithm's section.
        make_encoder: makes a new encoder of observations.
        ac_dim: A.
    """

    network = "discriminator"
    """Name of its weights among the networks and in ``algo.optim_params``, where it has weights."""

    def __init__(self, config: Any, make_encoder: Callable[[], GroupEncoder], ac_dim: int) -> None:
        super().__init__()
        self.config = config

    def loss(self, batch: Batch) -> tuple[Tensor, Info] | None:
        """The loss and what to log; None where nothing is learned.

        Args:
            batch: prepared transitions, see :class:`~imitate.algo.actor_critic.ActorCritic`, with ``expert`` (B,), 1
                where a transition is a demonstration's, else 0.
        """
        return None

    @abstractmethod
    def rewards(self, batch: Batch) -> Tensor:
        """(B,) without gradient."""
