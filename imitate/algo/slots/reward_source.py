"""Slot of an algorithm: a source that computes rewards from transitions, in place of the environment's rewards.

An algorithm's section names its source in ``reward_source``. So an algorithm that imitates without rewards consists of
a section, a source and an algorithm that learns from rewards: ``sqil`` and ``dac`` use ``sac``, ``gail`` and ``airl``
use ``ppo``. Algorithms with critics compute rewards when they sample a batch, algorithms that learn from rollouts once
per rollout. Computed rewards are used once and not stored, so they are never outdated.

Batches that a source sees are prepared transitions:

    obs, next_obs    {key: (B, [F,] ...)}
    actions          (B, A) as the environment took them, normalized
    terminals        (B,) 1 where a terminal follows, else 0
    expert           (B,) 1 where the transition is a demonstration's, else 0
    policy_log_prob  (B,) log-density of the actions under the current policy, if the source needs it
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from imitate.algo.base.algo import Batch, Info
from imitate.models.actor import GroupEncoder

MakeEncoder = Callable[[], GroupEncoder]
"""Function that makes a new encoder of observations."""


class RewardSource(ABC):
    """Rewards of transitions, and the loss of the network that computes them.

    Args:
        config: the algorithm's section.
        make_encoder: function that makes a new encoder of observations.
        ac_dim: A, action dimensions.
    """

    network: ClassVar[str] = "discriminator"
    """Name of :attr:`net` among the algorithm's networks and in ``algo.optim_params``."""
    needs_log_prob: ClassVar[bool] = False
    """True if batches must have ``policy_log_prob``."""
    net: nn.Module | None = None
    """Network that is trained by :meth:`loss`; None if the rewards are not learned."""

    def __init__(self, config: Any, make_encoder: MakeEncoder, ac_dim: int) -> None:
        self.config = config

    @property
    def passes(self) -> int:
        """Number of first passes over each rollout in which the source learns.

        The source learns from demonstrations and the rollout's steps.
        """
        return 0

    def loss(self, batch: Batch) -> tuple[Tensor, Info] | None:
        """Return the loss and scalars to log, or None if nothing is learned."""
        return None

    @abstractmethod
    def rewards(self, batch: Batch) -> Tensor:
        """Return rewards (B,) without gradient."""


def reward_source_of(config: Any, make_encoder: MakeEncoder, ac_dim: int) -> RewardSource | None:
    """Create the reward source that the section names; None if the environment's rewards are used."""
    source: type[RewardSource] | None = getattr(config, "reward_source", None)
    return None if source is None else source(config, make_encoder, ac_dim)
