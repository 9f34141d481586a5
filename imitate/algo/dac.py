"""Discriminator-actor-critic (DAC): adversarial imitation from a replay buffer by SAC with a discriminator's rewards.

Kostrikov, Agrawal, Dwibedi, Levine, Tompson, "Discriminator-Actor-Critic: Addressing Sample Inefficiency and Reward
Bias in Adversarial Imitation Learning", ICLR 2019 (arXiv:1809.02925). A part of each batch consists of demonstrations
(``train.online.demo_ratio``). With the logit l(s, a) of the probability D that a transition is the expert's, and the
logit L of the absorbing state after a terminal:

    discriminator: cross-entropy with absorbing states and a gradient penalty          -> adversarial.py
    reward:        r = log D - log(1 - D) = l, and after a terminal g / (1 - g) L more    -> DACRewards.reward_of
    critics, actor, temperature: as in ``sac``, on these rewards

The environment's rewards are not used. Departures: SAC instead of TD3; the critics also learn from the demonstrations
of a batch; the absorbing state's value is computed instead of learned. As in the paper, replayed steps are not weighted
by importance. It needs fewer environment steps than ``gail``, which learns from whole rollouts.
"""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from imitate.algo.base.adversarial import AdversarialRewards, DiscriminatorConfig
from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.entropy import SACConfig
from imitate.algo.base.factory import register_learner
from imitate.algo.base.rl_sections import needs_demonstrations
from imitate.algo.slots.reward_source import RewardSource
from imitate.config import BaseConfig
from imitate.config.optimizer import Networks, networks


class DACRewards(AdversarialRewards):
    """Reward source of DAC; its rewards, the discriminator's logits, may be positive or negative."""

    def reward_of(self, logits: Tensor) -> Tensor:
        """Return log D - log(1 - D)."""
        return logits

    def loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the loss; the logged loss includes the gradient penalty."""
        loss, info = super().loss(batch)
        return loss, {**info, "Discriminator_Loss": loss}


class DACDiscriminatorConfig(DiscriminatorConfig):
    """Network that distinguishes the expert's transitions from the policy's."""

    gradient_penalty: float = Field(
        10.0, ge=0, description="weight of the discriminator's gradient penalty (|gradient| - 1)^2"
    )


@register_learner("dac", learner="sac")
class DACConfig(SACConfig):
    """Options of algorithm ``dac``, under ``algo``."""

    tree_defaults = {"train": {"batch_size": 256, "online": {"enabled": True, "demo_ratio": 0.5}}}
    reward_source: ClassVar[type[RewardSource]] = DACRewards
    reward_free = True

    optim_params: Networks = networks(
        "DACOptimParams", critic=3e-4, actor=3e-4, temperature=3e-4, discriminator=3e-4
    )
    discriminator: DACDiscriminatorConfig = Field(DACDiscriminatorConfig())

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        problems = [*super().conflicts(config), *needs_demonstrations(config)]
        if config.use_goals:
            problems.append(
                "observation.modalities.goal lists observations, but dac's discriminator sees no goals: empty it"
            )
        return problems
