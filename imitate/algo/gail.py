"""Generative adversarial imitation (GAIL): PPO; a discriminator rewards steps that resemble the expert's.

Ho & Ermon, "Generative Adversarial Imitation Learning", NeurIPS 2016 (arXiv:1606.03476). The environment's rewards are
not used. With D(s, a) the probability that a transition is the expert's, and l its logit:

    discriminator, absorbing states    see adversarial.py
    reward   -log(1 - D(s, a)) = softplus(l)                                               -> GAILRewards.reward_of

Departures: PPO instead of TRPO; a gradient penalty; absorbing states, without which non-negative rewards would teach a
policy to prolong episodes.
"""

from typing import ClassVar

from torch import Tensor
from torch.nn.functional import softplus

from imitate.algo.base.adversarial import AdversarialConfig, AdversarialRewards
from imitate.algo.base.factory import register_learner
from imitate.algo.slots.reward_source import RewardSource


class GAILRewards(AdversarialRewards):
    """Reward source of GAIL; its rewards are never negative."""

    def reward_of(self, logits: Tensor) -> Tensor:
        """Return -log(1 - D)."""
        return softplus(logits)


@register_learner("gail", learner="ppo")
class GAILConfig(AdversarialConfig):
    """Options of algorithm ``gail``, under ``algo``."""

    reward_source: ClassVar[type[RewardSource] | None] = GAILRewards
