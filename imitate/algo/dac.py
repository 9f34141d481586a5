"""Discriminator-actor-critic (DAC): adversarial imitation from a replay buffer. SAC with a discriminator's rewards.

Kostrikov, Agrawal, Dwibedi, Levine, Tompson, "Discriminator-Actor-Critic: Addressing Sample Inefficiency and Reward
Bias in Adversarial Imitation Learning", ICLR 2019 (arXiv:1809.02925). A part of each batch is demonstrations
(``train.online.demo_ratio``). With the logit l(s, a) of the probability D that a transition is the expert's, and L that
of the absorbing state, in which all goes on for ever after a terminal:

    discriminator: mean of softplus(-l) over demonstrations and of softplus(l) over the replay buffer's, each terminal
                   counting as one more step, in the absorbing state; a gradient penalty         -> DACRewards.loss
    reward:        r = log D - log(1 - D) = l, and after a terminal g / (1 - g) L more           -> DACRewards.rewards
    critics, actor, temperature: as in ``sac``, on these rewards

The environment's rewards are not looked at. Departures: SAC in place of TD3; the critics learn from the demonstrations
of a batch too; the absorbing state's value is worked out rather than learned; replayed steps are not weighted by
importance, as in the paper. It is the replaying form of ``gail``, which learns from whole rollouts and needs more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import softplus

from imitate.algo.algo import Batch, Info
from imitate.algo.entropy import SACConfig, SoftOptimParams
from imitate.algo.factory import register_learner
from imitate.algo.reward_source import RewardSource
from imitate.algo.rl_sections import StagedOptimizerConfig, needs_demonstrations, optimizer
from imitate.algo.sections import LayerDims
from imitate.config import BaseConfig, Section
from imitate.functional.losses import masked_mean
from imitate.models.actor import GroupEncoder
from imitate.models.discriminator import Judge, gradient_penalty


class DACRewards(RewardSource, Judge):
    """The discriminator, whose logits are the rewards."""

    def __init__(self, config: Any, make_encoder: Callable[[], GroupEncoder], ac_dim: int) -> None:
        Judge.__init__(self, make_encoder(), ac_dim, config.discriminator.layer_dims)
        self.config = config

    def _absorbing_logit(self) -> Tensor:
        score: Tensor = self(self.absorbing(self.last.weight))[0]
        return score

    def loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Cross-entropy of telling demonstrations from replayed steps, with the gradient penalty."""
        inputs = self.inputs(batch["obs"], batch["actions"])
        logits, absorbing = self(inputs), self._absorbing_logit()
        expert, terminals = batch["expert"], _terminals(batch)
        each = torch.cat([logits, absorbing.expand_as(logits)])
        of_expert = torch.cat([expert, expert * terminals])
        of_policy = torch.cat([1.0 - expert, (1.0 - expert) * terminals])
        loss = masked_mean(softplus(-each), of_expert) + masked_mean(softplus(each), of_policy)
        info = {
            "Expert_Accuracy": masked_mean((logits > 0).float(), expert),
            "Policy_Accuracy": masked_mean((logits < 0).float(), 1.0 - expert),
            "Absorbing_Logit": absorbing,
        }
        weight = self.config.discriminator.gradient_penalty
        first, second = inputs[expert > 0], inputs[expert == 0]
        if weight > 0 and len(first) and len(second):
            loss = loss + weight * gradient_penalty(self, first, second)
        return loss, {"Discriminator_Loss": loss, **info}

    @torch.no_grad()
    def rewards(self, batch: Batch) -> Tensor:
        """(B,) logits, and after a terminal the absorbing state's for ever."""
        logits: Tensor = self(self.inputs(batch["obs"], batch["actions"]))
        discount: float = self.config.discount
        # Beyond a discount of 0.999 the absorbing state would be all that counts.
        after = discount / max(1.0 - discount, 1e-3) * self._absorbing_logit()
        rewards: Tensor = logits + after * _terminals(batch)
        return rewards


def _terminals(batch: Batch) -> Tensor:
    """(B,) 1 where nothing is bootstrapped, else 0."""
    discounts: Tensor = batch["discounts"]
    return (discounts == 0).to(discounts)


class DACOptimParams(SoftOptimParams):
    """Optimizers by network."""

    discriminator: StagedOptimizerConfig = Field(optimizer(3e-4))


class DACDiscriminatorConfig(Section):
    """The network that tells the expert from the policy."""

    layer_dims: LayerDims = Field((64, 64), description="hidden layers")
    gradient_penalty: float = Field(10.0, ge=0, description="weight of (|gradient| - 1)^2")


@register_learner("dac", learner="sac")
class DACConfig(SACConfig):
    """Section ``algo`` of algorithm ``dac``."""

    tree_defaults = {"train": {"batch_size": 256, "online": {"enabled": True, "demo_ratio": 0.5}}}
    reward_source: ClassVar[type[RewardSource]] = DACRewards
    reward_free = True

    optim_params: DACOptimParams = Field(DACOptimParams())
    discriminator: DACDiscriminatorConfig = Field(DACDiscriminatorConfig())

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Combinations that cannot be trained."""
        problems = [*super().conflicts(config), *needs_demonstrations(config)]
        if config.use_goals:
            problems.append(
                "observation.modalities.goal lists observations, but dac's discriminator sees no goals: empty it"
            )
        return problems
