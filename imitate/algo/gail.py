"""Generative adversarial imitation: a policy that a discriminator cannot tell from the expert. No rewards are needed.

Ho & Ermon, "Generative Adversarial Imitation Learning", NeurIPS 2016 (arXiv:1606.03476). With D(s, a) the probability
that a transition is the expert's:

    discriminator, absorbing states    see adversarial.py
    reward   -log(1 - D(s, a)) = softplus(l)                                               -> GAIL._reward

Departures: PPO in place of TRPO; a gradient penalty; absorbing states, without which a reward that is never negative
would teach a policy to live long.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor
from torch.nn.functional import softplus

from imitate.algo.adversarial import Adversarial, AdversarialConfig
from imitate.algo.algo import Algo, Batch
from imitate.algo.factory import register_algo_factory_func
from imitate.models.discriminator import Judge, gradient_penalty


class GAILConfig(AdversarialConfig):
    """Section ``algo`` of algorithm ``gail``."""


@register_algo_factory_func("gail", section=GAILConfig)
def algo_config_to_class(algo_config: GAILConfig) -> tuple[type[Algo], dict[str, Any]]:
    """There is one class."""
    return GAIL, {}


class GAIL(Adversarial):
    """The logit is the discriminator's output."""

    @property
    def judge(self) -> Judge:
        """The discriminator."""
        return cast(Judge, self.nets["discriminator"])

    def _inputs(self, batch: Batch) -> Tensor:
        return self.judge.inputs(batch["obs"], batch["executed"])

    def _logits(self, batch: Batch) -> Tensor:
        scores: Tensor = self.judge(self._inputs(batch))
        return scores

    def _absorbing_logit(self) -> Tensor:
        score: Tensor = self.judge(self.judge.absorbing(self.judge.last.weight))[0]
        return score

    def _penalty(self, expert: Batch, policy: Batch) -> Tensor:
        return gradient_penalty(self.judge, self._inputs(expert), self._inputs(policy))

    def _reward(self, logits: Tensor) -> Tensor:
        return softplus(logits)
