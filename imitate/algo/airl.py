"""Adversarial inverse reinforcement learning (AIRL): the discriminator has the form of a reward, which can be kept.

Fu, Luo, Levine, "Learning Robust Rewards with Adversarial Inverse Reinforcement Learning", ICLR 2018
(arXiv:1710.11248). PPO learns from the rewards. With a reward g, a shaping potential h and the present policy pi:

    f(s, a, s') = g(s, a) + discount h(s') - h(s)                                      -> AIRLRewards.shaped
    l = f(s, a, s') - log pi(a | s)                                                    -> AIRLRewards.logits
    reward  log D - log(1 - D) = l                                                     -> AIRLRewards.reward_of

With ``algo.discriminator.sees_actions`` false g depends on the state alone, as where the reward is to be used under
other dynamics. Departures: PPO in place of TRPO; a gradient penalty; what follows a terminal is an absorbing state
(adversarial.py), in which the only action has density 1.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from imitate.algo.base.adversarial import AdversarialConfig, AdversarialRewards
from imitate.algo.base.algo import Batch
from imitate.algo.base.factory import register_learner
from imitate.algo.slots.reward_source import MakeEncoder, RewardSource
from imitate.models.actor import Obs
from imitate.models.discriminator import Discriminator


class AIRLRewards(AdversarialRewards):
    """Logits that compare a shaped reward with the policy's density."""

    needs_log_prob = True

    def __init__(self, config: Any, make_encoder: MakeEncoder, ac_dim: int) -> None:
        super().__init__(config, make_encoder, ac_dim)
        self.potential = Discriminator(make_encoder(), 0, config.discriminator.layer_dims)
        self.net = nn.ModuleDict({"reward": self.discriminator, "potential": self.potential})

    def _potential_of(self, obs: Obs, actions: Tensor) -> Tensor:
        potential: Tensor = self.potential(self.potential.inputs(obs, actions))
        return potential

    def shaped(self, inputs: Tensor, batch: Batch) -> Tensor:
        """(B,) f; after a terminal h is that of the absorbing state."""
        now = self._potential_of(batch["obs"], batch["actions"])
        later = self._potential_of(batch["next_obs"], batch["actions"])
        later = torch.where(batch["terminals"] > 0, self.potential.at_absorbing(), later)
        shaped: Tensor = self.discriminator(inputs) + self.config.discount * later - now
        return shaped

    def logits(self, inputs: Tensor, batch: Batch) -> Tensor:
        """(B,) f - log pi(a | s)."""
        logits: Tensor = self.shaped(inputs, batch) - batch["policy_log_prob"]
        return logits

    def absorbing_logit(self) -> Tensor:
        """() g + discount h - h, all of the absorbing state."""
        shaping = (self.config.discount - 1.0) * self.potential.at_absorbing()
        logit: Tensor = self.discriminator.at_absorbing() + shaping
        return logit

    def reward_of(self, logits: Tensor) -> Tensor:
        """Log D - log(1 - D)."""
        return logits


@register_learner("airl", learner="ppo")
class AIRLConfig(AdversarialConfig):
    """Section ``algo`` of algorithm ``airl``."""

    reward_source: ClassVar[type[RewardSource] | None] = AIRLRewards
