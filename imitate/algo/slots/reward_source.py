"""Slot of an algorithm: rewards in place of the environment's, computed from transitions.

A section names its source in ``reward_source``. So imitation without rewards is a section and a source beside an
algorithm that learns from rewards: ``sqil``, ``dac`` (learned by ``sac``), ``gail``, ``airl`` (by ``ppo``). Algorithms
with critics ask for rewards when they sample a batch, those that learn from rollouts once for each rollout; rewards are
never stored longer, so they are never stale.

Batches that a source sees are prepared transitions:

    obs, next_obs    {key: (B, [F,] ...)}
    actions          (B, A) as the environment took them, normalized
    terminals        (B,) 1 where a terminal follows, else 0
    expert           (B,) 1 where the transition is a demonstration's, else 0
    policy_log_prob  (B,) log-density of the actions under the present policy, where the source asks for it
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from imitate.algo.base.algo import Batch, Info
from imitate.models.actor import GroupEncoder

MakeEncoder = Callable[[], GroupEncoder]
"""Makes a new encoder of observations."""


class RewardSource(ABC):
    """Rewards of transitions, and the loss of the network that they come from.

    Args:
        config: the algorithm's section.
        make_encoder: makes a new encoder of observations.
        ac_dim: A.
    """

    network: ClassVar[str] = "discriminator"
    """Name of :attr:`net` among the algorithm's networks and in ``algo.optim_params``."""
    needs_log_prob: ClassVar[bool] = False
    """True where batches must have ``policy_log_prob``."""
    net: nn.Module | None = None
    """Network that learns, where there is one."""

    def __init__(self, config: Any, make_encoder: MakeEncoder, ac_dim: int) -> None:
        self.config = config

    @property
    def passes(self) -> int:
        """Passes over each rollout, the first ones, in which the source learns from demonstrations beside it."""
        return 0

    def loss(self, batch: Batch) -> tuple[Tensor, Info] | None:
        """The loss and scalars to log; None where nothing is learned."""
        return None

    @abstractmethod
    def rewards(self, batch: Batch) -> Tensor:
        """(B,) without gradient."""


def reward_source_of(config: Any, make_encoder: MakeEncoder, ac_dim: int) -> RewardSource | None:
    """A new source as the section wants it; None: the environment's rewards count."""
    source: type[RewardSource] | None = getattr(config, "reward_source", None)
    return None if source is None else source(config, make_encoder, ac_dim)
