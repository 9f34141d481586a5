"""Adversarial inverse reinforcement learning (AIRL): the discriminator contains a reward that can be reused.

Fu, Luo, Levine, "Learning Robust Rewards with Adversarial Inverse Reinforcement Learning", ICLR 2018
(arXiv:1710.11248). PPO learns from the rewards of the discriminator. With a reward g, a shaping potential h and the
current policy pi:

    f(s, a, s') = g(s, a) + discount h(s') - h(s)                                      -> AIRLRewards.shaped
    l = f(s, a, s') - log pi(a | s)                                                    -> AIRLRewards.logits
    reward  log D - log(1 - D) = l                                                     -> AIRLRewards.reward_of

With ``algo.discriminator.sees_actions`` false, g depends only on the state, which is needed if the reward is to be used
under other dynamics. Departures: PPO instead of TRPO; a gradient penalty; a terminal is followed by an absorbing state
(adversarial.py), whose only action has density 1.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from imitate.algo.base.adversarial import AdversarialConfig, AdversarialRewards, Discriminator
from imitate.algo.base.algo import Batch
from imitate.algo.base.factory import register_learner
from imitate.algo.slots.reward_source import MakeEncoder, RewardSource
from imitate.models.actor import Obs


class AIRLRewards(AdversarialRewards):
    """Reward source of AIRL, whose logit is a shaped reward minus the policy's log-density."""

    needs_log_prob = True

    def __init__(self, config: Any, make_encoder: MakeEncoder, ac_dim: int) -> None:
        super().__init__(config, make_encoder, ac_dim)
        self.potential = Discriminator(make_encoder(), 0, config.discriminator.layer_dims)
        self.net = nn.ModuleDict({"reward": self.discriminator, "potential": self.potential})

    def _potential_of(self, obs: Obs, actions: Tensor) -> Tensor:
        potential: Tensor = self.potential(self.potential.inputs(obs, actions))
        return potential

    def shaped(self, inputs: Tensor, batch: Batch) -> Tensor:
        """Return the shaped rewards f (B,); after a terminal, h is the potential of the absorbing state."""
        now = self._potential_of(batch["obs"], batch["actions"])
        later = self._potential_of(batch["next_obs"], batch["actions"])
        later = torch.where(batch["terminals"] > 0, self.potential.at_absorbing(), later)
        shaped: Tensor = self.discriminator(inputs) + self.config.discount * later - now
        return shaped

    def logits(self, inputs: Tensor, batch: Batch) -> Tensor:
        """Return f - log pi(a | s) (B,)."""
        logits: Tensor = self.shaped(inputs, batch) - batch["policy_log_prob"]
        return logits

    def absorbing_logit(self) -> Tensor:
        """Return f = g + discount h - h of a step in the absorbing state, a scalar tensor."""
        shaping = (self.config.discount - 1.0) * self.potential.at_absorbing()
        logit: Tensor = self.discriminator.at_absorbing() + shaping
        return logit

    def reward_of(self, logits: Tensor) -> Tensor:
        """Return log D - log(1 - D)."""
        return logits


@register_learner("airl", learner="ppo")
class AIRLConfig(AdversarialConfig):
    """Options of algorithm ``airl``, under ``algo``."""

    reward_source: ClassVar[type[RewardSource] | None] = AIRLRewards
