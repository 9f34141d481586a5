"""Adversarial inverse reinforcement learning: the discriminator has the form of a reward, which can be kept.

Fu, Luo, Levine, "Learning Robust Rewards with Adversarial Inverse Reinforcement Learning", ICLR 2018
(arXiv:1710.11248). With a reward g, a shaping potential h and the present policy pi:

    f(s, a, s') = g(s, a) + discount h(s') - h(s)                                          -> AIRL._advantage
    l = f(s, a, s') - log pi(a | s)                                                        -> AIRL._logits
    reward  log D - log(1 - D) = l                                                         -> AIRL._reward

With ``algo.discriminator.sees_actions`` false g depends on the state alone, as where the reward is to be used under
other dynamics. Departures: PPO in place of TRPO; a gradient penalty; what follows a terminal is an absorbing state
(adversarial.py), in which the only action has density 1.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from imitate.algo.adversarial import Adversarial, AdversarialConfig
from imitate.algo.algo import Algo, Batch
from imitate.algo.factory import register_algo_factory_func
from imitate.models.discriminator import Judge, gradient_penalty


class AIRLConfig(AdversarialConfig):
    """Section ``algo`` of algorithm ``airl``."""


@register_algo_factory_func("airl", section=AIRLConfig)
def algo_config_to_class(algo_config: AIRLConfig) -> tuple[type[Algo], dict[str, Any]]:
    """There is one class."""
    return AIRL, {}


class AIRL(Adversarial):
    """The logit compares a reward with the policy's density."""

    def _create_discriminator(self) -> nn.Module:
        reward = super()._create_discriminator()
        return nn.ModuleDict({"reward": reward, "potential": self._create_judge(0)})

    def _judge(self, name: str) -> Judge:
        nets = self.nets["discriminator"]
        assert isinstance(nets, nn.ModuleDict)
        return cast(Judge, nets[name])

    def _reward_inputs(self, batch: Batch) -> Tensor:
        return self._judge("reward").inputs(batch["obs"], batch["executed"])

    def _potential(self, obs: dict[str, Tensor], actions: Tensor) -> Tensor:
        potential = self._judge("potential")
        values: Tensor = potential(potential.inputs(obs, actions))
        return values

    def _absorbing_of(self, name: str) -> Tensor:
        judge = self._judge(name)
        value: Tensor = judge(judge.absorbing(judge.last.weight))[0]
        return value

    def _advantage(self, batch: Batch) -> Tensor:
        """(B,) f."""
        now = self._potential(batch["obs"], batch["executed"])
        later = self._potential(batch["next_obs"], batch["executed"])
        later = torch.where(batch["terminals"] > 0, self._absorbing_of("potential"), later)
        reward: Tensor = self._judge("reward")(self._reward_inputs(batch))
        advantage: Tensor = reward + self.algo_config.discount * later - now
        return advantage

    def _logits(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            log_prob = self.net.actor(batch["obs"]).log_prob(batch["executed"])
        return self._advantage(batch) - log_prob

    def _absorbing_logit(self) -> Tensor:
        shaping = (self.algo_config.discount - 1.0) * self._absorbing_of("potential")
        logit: Tensor = self._absorbing_of("reward") + shaping
        return logit

    def _penalty(self, expert: Batch, policy: Batch) -> Tensor:
        judge = self._judge("reward")
        return gradient_penalty(judge, self._reward_inputs(expert), self._reward_inputs(policy))

    def _reward(self, logits: Tensor) -> Tensor:
        return logits
