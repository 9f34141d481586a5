"""Reinforcement learning with prior data: SAC whose batches are half demonstrations, half practice.

Ball, Smith, Kostrikov, Levine, "Efficient Online Reinforcement Learning with Offline Data", ICML 2023
(arXiv:2302.02948). All is as in :mod:`imitate.algo.sac`, except for

    batches: half from ``train.data``, half practice                  -> ``train.online.demo_ratio``
    target = r + g (min over Z random critics of Q'_e(s', a') - alpha log pi(a' | s'))        -> RLPD._target
    critics: 10, with layer normalization                             -> RLPDCriticConfig
    actor:   alpha log pi(a | s) - mean over all e of Q_e(s, a)                               -> RLPD._actor_loss
    20 updates of the critics per step, after the last of which the actor and alpha follow    -> RLPD._update

Departures: the actor takes its turn at the first of each ``actor.update_freq`` updates rather than at the last; a
layer is normalized after its ReLU, not before.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from imitate.algo.actor_critic import Update
from imitate.algo.algo import Algo, Batch, Info
from imitate.algo.factory import register_algo_factory_func
from imitate.algo.rl_sections import EnsembleConfig
from imitate.algo.sac import SAC, SACActorConfig, SACConfig, SACCriticConfig
from imitate.functional.losses import masked_mean


class RLPDActorConfig(SACActorConfig):
    """A tanh-Gaussian policy that follows more slowly than its critics."""

    update_freq: int = Field(
        20,
        ge=1,
        description="the actor and the temperature follow every so many updates of the critics",
    )


class RLPDCriticConfig(SACCriticConfig):
    """Many critics, of which few are asked at a time."""

    layer_norm: bool = Field(True, description="layer normalization after each ReLU")
    ensemble: EnsembleConfig = Field(EnsembleConfig(n=10))
    subset: int = Field(
        2, ge=1, description="critics, drawn anew for each update, of which targets are the least"
    )


class RLPDConfig(SACConfig):
    """Section ``algo`` of algorithm ``rlpd``."""

    tree_defaults = {
        "train": {
            "batch_size": 256,
            "online": {"enabled": True, "demo_ratio": 0.5, "update_ratio": 20},
        }
    }

    actor: RLPDActorConfig = Field(RLPDActorConfig())
    critic: RLPDCriticConfig = Field(RLPDCriticConfig())
    entropy_backup: bool = Field(
        True, description="targets count the next action's entropy; false: the actor alone does"
    )

    def conflicts(self, config: Any) -> list[str]:
        """Combinations that cannot be trained."""
        problems = super().conflicts(config)
        critic = self.critic
        if critic.subset > critic.ensemble.n:
            problems.append(
                f"algo.critic.subset is {critic.subset}, but there are {critic.ensemble.n} critics: lower it or raise "
                "algo.critic.ensemble.n"
            )
        if critic.ensemble.weight != 1.0:
            problems.append(
                f"algo.critic.ensemble.weight is {critic.ensemble.weight:g}, but targets of rlpd are the least of a "
                "random subset: set it to 1"
            )
        return problems


@register_algo_factory_func("rlpd", section=RLPDConfig)
def algo_config_to_class(algo_config: RLPDConfig) -> tuple[type[Algo], dict[str, Any]]:
    """There is one class."""
    return RLPD, {}


class RLPD(SAC):
    """SAC with many normalized critics."""

    def _create_networks(self) -> None:
        super()._create_networks()
        self.counters["critic_updates"] = 0

    # ---- losses --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _target(self, batch: Batch) -> Tensor:
        """(B,) what the critics are to say: the least of a random few."""
        actions, log_prob = self._drawn(batch["next_obs"], batch["goal_obs"])
        values = self._critic("critic_target")(batch["next_obs"], actions, batch["goal_obs"])
        asked = torch.randperm(len(values), device=values.device)[: self.algo_config.critic.subset]
        following = values[asked].amin(0)
        if self.algo_config.entropy_backup:
            following = following - self._alpha * log_prob
        target: Tensor = batch["rewards"] + batch["discounts"] * following
        return target

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        actions, log_prob = self._drawn(batch["obs"], batch["goal_obs"])
        liked = self._critic("critic")(batch["obs"], actions, batch["goal_obs"]).mean(0)
        loss = masked_mean(self._alpha * log_prob - liked, batch["weight"])
        entropy = -masked_mean(log_prob.detach(), batch["weight"])
        return loss, {"Actor_Loss": loss, "Entropy": entropy, "Temperature": self._alpha}

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """Critics and targets; every few updates the actor and the temperature."""
        update.step("critic", self._critic_loss(batch))
        if update.learns("critic"):
            self._follow()
        if not update.turn("critic_updates", self.config.actor.update_freq, first=True):
            return
        update.step("actor", self._actor_loss(batch))
        if "temperature" in self.nets and update.learns("actor"):
            self._gradient_step("temperature", self._temperature_loss(update.info))
