"""Reinforcement learning with prior data (RLPD): soft actor-critic whose batches are half demonstrations.

Ball, Smith, Kostrikov, Levine, "Efficient Online Reinforcement Learning with Offline Data", ICML 2023
(arXiv:2302.02948), on Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (arXiv:1812.05905). With targets
Q', the discount g and a tanh-Gaussian policy pi:

    batches: half from ``train.data``, half from the replay buffer   -> ``train.online.demo_ratio``
    target = r + g (min over Z random critics of Q'_e(s', a') - alpha log pi(a' | s')), a' ~ pi(s')   -> RLPD._target
    critic: mean over the batch, sum over e, of (Q_e(s, a) - target)^2, by default 10 critics     -> RLPD._critic_loss
    actor:  alpha log pi(a | s) - mean over all e of Q_e(s, a), a ~ pi(s)   -> RLPD._actor_loss
    alpha:  rises while the entropy is below its target, falls while it is above   -> EntropyWeight.loss
    20 updates of the critics per step, and one update of the actor and alpha   -> RLPD._update

Departures: the actor is updated at the first of each ``actor.update_freq`` updates instead of the last; layers are
normalized after the ReLU, not before; as in ``sac``, errors are summed over the critics and not halved. With
``algo.prior``, log pi is relative to a prior (:mod:`imitate.algo.slots.prior`).
"""

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.actor_critic import ActorCritic, Update
from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.entropy import (
    EntropyWeight,
    SoftActorConfig,
    SoftActorCriticConfig,
    SoftCriticConfig,
    prior_field,
    sampled_actions,
)
from imitate.algo.base.factory import register
from imitate.algo.base.rl_sections import CriticEnsembleConfig
from imitate.algo.slots.prior import PriorConfig
from imitate.config import BaseConfig
from imitate.functional.losses import masked_mean


class RLPDActorConfig(SoftActorConfig):
    """Tanh-Gaussian policy that is updated less often than its critics."""

    update_freq: int = Field(
        20,
        ge=1,
        description="number of critic updates between two updates of the actor and the temperature",
    )


class RLPDCriticConfig(SoftCriticConfig):
    """Many critics, of which a few random ones are used for each target."""

    layer_norm: bool = Field(True, description="layer normalization after each ReLU")
    ensemble: CriticEnsembleConfig = Field(CriticEnsembleConfig(n=10))
    subset: int = Field(
        2,
        ge=1,
        description="number of critics drawn at random for each update; the target uses their smallest value",
    )


class RLPDConfig(SoftActorCriticConfig):
    """Options of algorithm ``rlpd``, under ``algo``."""

    value_per_reward = True
    tree_defaults = {
        "train": {
            "batch_size": 256,
            "online": {"enabled": True, "demo_ratio": 0.5, "update_ratio": 20},
        }
    }

    actor: RLPDActorConfig = Field(RLPDActorConfig())
    critic: RLPDCriticConfig = Field(RLPDCriticConfig())
    prior: PriorConfig | None = prior_field()
    entropy_backup: bool = Field(
        True,
        description="include the next action's entropy in targets; false: only the actor's loss includes the entropy",
    )

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        problems = super().conflicts(config)
        critic = self.critic
        if critic.subset > critic.ensemble.n:
            problems.append(
                f"algo.critic.subset is {critic.subset}, but there are {critic.ensemble.n} critics: lower it or raise "
                "algo.critic.ensemble.n"
            )
        if critic.ensemble.weight != 1.0:
            problems.append(
                f"algo.critic.ensemble.weight is {critic.ensemble.weight:g}, but targets of rlpd use the smallest "
                "value of a random subset: set it to 1"
            )
        return problems


@register("rlpd", RLPDConfig)
class RLPD(ActorCritic[RLPDConfig]):
    """Tanh-Gaussian actor and many critics with layer normalization."""

    def _create_networks(self) -> None:
        config = self.config
        self.counters["critic_updates"] = 0
        self.nets = nn.ModuleDict(
            {
                "actor": self._create_actor(config.actor),
                "critic": self._create_critic(config.critic),
            }
        )
        self._add_targets()
        target = torch.tensor(config.target_entropy(self.ac_dim), device=self.device)
        self.entropy = EntropyWeight(config.temperature, target)
        if self.entropy.net is not None:
            self.nets["temperature"] = self.entropy.net

    def _max_grad_norm(self, name: str) -> float | None:
        return None if name == "temperature" else super()._max_grad_norm(name)

    # ---- losses --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _target(self, batch: Batch) -> Tensor:
        """Return the TD target (B,) or (B, V), without gradient: the minimum of a few random target critics."""
        actions, log_prob = sampled_actions(
            self.actor, batch["next_obs"], batch["goal_obs"], self.log_prior
        )
        values = self._critic("critic_target")(batch["next_obs"], actions, batch["goal_obs"])
        asked = torch.randperm(len(values), device=values.device)[: self.config.critic.subset]
        following = self._ensemble_value(values[asked])
        if self.config.entropy_backup:
            following = self._plus(following, -self.entropy.value * log_prob)
        target: Tensor = batch["rewards"] + batch["discounts"] * following
        return target

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        target = self._target(batch)
        values = self._critic("critic")(batch["obs"], batch["actions"], batch["goal_obs"])
        loss = self._td_loss(values, target, batch["weight"])
        return loss, {
            "Critic_Loss": loss,
            "Q": self._total(values).mean(),
            "Q_Targets": self._total(target).mean(),
        }

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        actions, log_prob = sampled_actions(
            self.actor, batch["obs"], batch["goal_obs"], self.log_prior
        )
        values = self._total(
            self._critic("critic")(batch["obs"], actions, batch["goal_obs"]).mean(0)
        )
        loss = masked_mean(self.entropy.value * log_prob - values, batch["weight"])
        entropy = -masked_mean(log_prob.detach(), batch["weight"])
        return loss, {"Actor_Loss": loss, "Entropy": entropy, "Temperature": self.entropy.value}

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """Update critics and target networks; every ``actor.update_freq`` updates also actor and temperature."""
        update.step("critic", self._critic_loss(batch))
        if update.learns("critic"):
            self._follow()
        if not update.turn("critic_updates", self.config.actor.update_freq, first=True):
            return
        update.step("actor", self._actor_loss(batch))
        if self.entropy.net is not None and update.learns("actor"):
            self._gradient_step("temperature", self.entropy.loss(update.info["Entropy"]))
