"""Discriminator-actor-critic: adversarial imitation that replays. SAC whose rewards a discriminator gives when sampled.

Kostrikov, Agrawal, Dwibedi, Levine, Tompson, "Discriminator-Actor-Critic: Addressing Sample Inefficiency and Reward
Bias in Adversarial Imitation Learning", ICLR 2019 (arXiv:1809.02925). A part of each batch is demonstrations
(``train.online.demo_ratio``). With the logit l(s, a) of the probability D that a transition is the expert's, and L that
of the absorbing state, in which all goes on for ever after a terminal:

    discriminator: mean of softplus(-l) over demonstrations and of softplus(l) over practice, each terminal counting as
                   one more step, in the absorbing state; a gradient penalty                       -> DAC._judge_loss
    reward:        r = log D - log(1 - D) = l, and after a terminal g / (1 - g) L more             -> DAC._rewarded
    critics, actor, temperature: as in ``sac``, on these rewards

The environment's rewards are not looked at. Departures: SAC in place of TD3; the critics learn from the demonstrations
of a batch too; the absorbing state's value is worked out rather than learned; practice is not weighed by importance, as
in the paper. It is the replaying form of ``gail``, which learns from whole rollouts and needs more steps.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import softplus

from imitate.algo.actor_critic import Update
from imitate.algo.algo import Algo, Batch, Info
from imitate.algo.factory import register_algo_factory_func
from imitate.algo.rl_sections import StagedOptimizerConfig, optimizer
from imitate.algo.sac import SAC, SACOptimParams
from imitate.algo.sections import LayerDims
from imitate.algo.sqil import SQILConfig
from imitate.config import Section
from imitate.functional.losses import masked_mean
from imitate.models.discriminator import Judge, gradient_penalty


class DACOptimParams(SACOptimParams):
    """SAC's optimizers and the discriminator's."""

    discriminator: StagedOptimizerConfig = Field(optimizer(3e-4))


class DACDiscriminatorConfig(Section):
    """The network that tells the expert from the policy."""

    layer_dims: LayerDims = Field((64, 64), description="hidden layers")
    gradient_penalty: float = Field(10.0, ge=0, description="weight of (|gradient| - 1)^2")


class DACConfig(SQILConfig):
    """Section ``algo`` of algorithm ``dac``."""

    optim_params: DACOptimParams = Field(DACOptimParams())
    discriminator: DACDiscriminatorConfig = Field(DACDiscriminatorConfig())

    def conflicts(self, config: Any) -> list[str]:
        """Combinations that cannot be trained."""
        problems = super().conflicts(config)
        if config.use_goals:
            problems.append(
                "observation.modalities.goal lists observations, but dac's discriminator sees no goals: empty it"
            )
        return problems


@register_algo_factory_func("dac", section=DACConfig)
def algo_config_to_class(algo_config: DACConfig) -> tuple[type[Algo], dict[str, Any]]:
    """There is one class."""
    return DAC, {}


class DAC(SAC):
    """Rewards are a discriminator's opinion, as it is when they are needed."""

    def _create_networks(self) -> None:
        super()._create_networks()
        layers = self.algo_config.discriminator.layer_dims
        self.nets["discriminator"] = Judge(self._create_encoder(), self.ac_dim, layers)

    @property
    def judge(self) -> Judge:
        """The discriminator."""
        return cast(Judge, self.nets["discriminator"])

    def _select_batch(self, batch: Batch) -> Batch:
        """With ``expert`` (B,): 1 for demonstrations; without ``part`` all are."""
        selected = super()._select_batch(batch)
        part = batch.get("part", torch.ones_like(selected["discounts"]))
        selected["expert"] = (part > 0).to(selected["discounts"])
        selected["terminals"] = (selected["discounts"] == 0).to(selected["discounts"])
        return selected

    # ---- the discriminator -----------------------------------------------------------------------

    def _absorbing_logit(self) -> Tensor:
        score: Tensor = self.judge(self.judge.absorbing(self.judge.last.weight))[0]
        return score

    def _judge_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        inputs = self.judge.inputs(batch["obs"], batch["actions"])
        logits, absorbing = self.judge(inputs), self._absorbing_logit()
        expert, terminals = batch["expert"], batch["terminals"]
        each = torch.cat([logits, absorbing.expand_as(logits)])
        of_expert = torch.cat([expert, expert * terminals])
        of_policy = torch.cat([1.0 - expert, (1.0 - expert) * terminals])
        loss = masked_mean(softplus(-each), of_expert) + masked_mean(softplus(each), of_policy)
        info = {
            "Expert_Accuracy": masked_mean((logits > 0).float(), expert),
            "Policy_Accuracy": masked_mean((logits < 0).float(), 1.0 - expert),
            "Absorbing_Logit": absorbing,
        }
        weight = self.algo_config.discriminator.gradient_penalty
        first, second = inputs[expert > 0], inputs[expert == 0]
        if weight > 0 and len(first) and len(second):
            loss = loss + weight * gradient_penalty(self.judge, first, second)
        return loss, {"Discriminator_Loss": loss, **info}

    @torch.no_grad()
    def _rewarded(self, batch: Batch) -> Batch:
        """The batch with the discriminator's rewards."""
        logits: Tensor = self.judge(self.judge.inputs(batch["obs"], batch["actions"]))
        discount: float = self.algo_config.discount
        # Beyond a discount of 0.999 the absorbing state would be all that counts.
        after = discount / max(1.0 - discount, 1e-3) * self._absorbing_logit()
        return {**batch, "rewards": logits + after * batch["terminals"]}

    # ---- update ----------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """The discriminator, then SAC with its rewards."""
        update.step("discriminator", self._judge_loss(batch))
        rewarded = self._rewarded(batch)
        update.info["Judged_Reward"] = rewarded["rewards"].mean()
        super()._update(rewarded, update)
