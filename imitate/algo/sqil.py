"""Soft Q imitation learning (SQIL): SAC with reward 1 for the expert's steps and 0 for the policy's own.

Reddy, Dragan, Levine, "SQIL: Imitation Learning via Reinforcement Learning with Sparse Rewards", ICLR 2020
(arXiv:1905.11108). Half of each batch consists of demonstrations (``train.online.demo_ratio``). Critics, actor and
temperature learn as in ``sac``; the environment's rewards are not used:

    r = 1 for demonstrations, 0 for steps from the replay buffer                         -> SQILRewards.rewards

Departure: the reward of a terminal is assumed to continue for ever, r / (1 - discount) instead of r. Otherwise an
expert that finishes its task would be punished for that, and a policy that ends an episode by a failure could be
rewarded.
"""

from typing import ClassVar

import torch
from torch import Tensor

from imitate.algo.base.algo import Batch
from imitate.algo.base.entropy import SACConfig
from imitate.algo.base.factory import register_learner
from imitate.algo.base.rl_sections import needs_demonstrations
from imitate.algo.slots.reward_source import RewardSource
from imitate.config import BaseConfig


class SQILRewards(RewardSource):
    """Rewards of 1 for demonstrations and 0 for replayed steps, which continue for ever after a terminal."""

    def rewards(self, batch: Batch) -> Tensor:
        """Return rewards (B,), with 1 / (1 - discount) instead of 1 before a terminal."""
        for_ever = 1.0 / max(1.0 - self.config.discount, 1e-3)
        expert: Tensor = batch["expert"]
        return torch.where(batch["terminals"] > 0, for_ever * expert, expert)


@register_learner("sqil", learner="sac")
class SQILConfig(SACConfig):
    """Options of algorithm ``sqil``, under ``algo``."""

    tree_defaults = {"train": {"batch_size": 256, "online": {"enabled": True, "demo_ratio": 0.5}}}
    reward_source: ClassVar[type[RewardSource]] = SQILRewards
    reward_free = True

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        return [*super().conflicts(config), *needs_demonstrations(config)]
