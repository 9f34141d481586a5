"""Deep deterministic policy gradient.

Lillicrap et al., "Continuous control with deep reinforcement learning", ICLR 2016 (arXiv:1509.02971). With targets
pi', Q' and the discount g:

    L_Q = E[ (r + g Q'(s', pi'(s')) - Q(s, a))^2 ], without Q' after a terminal       -> DDPG._critic_loss
    L_pi = -E[ Q(s, pi(s)) ]                                                          -> DDPG._actor_loss

Rollouts have the noise of an Ornstein-Uhlenbeck process on their actions (``exploration``), which starts at 0 in each
episode. With ``algo.target`` ``data`` the target is SARSA's, r + g Q'(s', a') for the action a' that was taken next.
Departures: no weight decay, no batch normalization, a ``target_tau`` of 0.005.
"""

from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.actor_critic import ActorCritic, Update
from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.factory import register
from imitate.algo.base.rl_sections import (
    TARGET,
    ActorConfig,
    ActorCriticConfig,
    CriticConfig,
    CriticEnsembleConfig,
)
from imitate.algo.base.sections import LayerDims
from imitate.algo.slots.exploration import ActionNoiseConfig
from imitate.config.optimizer import Networks, networks
from imitate.functional.losses import masked_mean


class DDPGActorConfig(ActorConfig):
    """Deterministic actor, by default with two hidden layers."""

    layer_dims: LayerDims = Field((256, 256), description="widths of the hidden layers")


class DDPGCriticConfig(CriticConfig):
    """A single critic, by default with two hidden layers."""

    layer_dims: LayerDims = Field((256, 256), description="widths of the hidden layers")
    ensemble: CriticEnsembleConfig = Field(CriticEnsembleConfig(n=1))


class DDPGConfig(ActorCriticConfig):
    """Options of algorithm ``ddpg``, under ``algo``."""

    value_per_reward = True
    tree_defaults = {"train": {"batch_size": 256, "online": {"enabled": True}}}

    optim_params: Networks = networks("DDPGOptimParams", critic=1e-3, actor=1e-3)
    actor: DDPGActorConfig = Field(DDPGActorConfig())
    critic: DDPGCriticConfig = Field(DDPGCriticConfig())
    exploration: ActionNoiseConfig = Field(ActionNoiseConfig(std=0.2, damping=0.15))
    target: Literal["policy", "data"] = TARGET
    action_l2: float = Field(
        0.0, ge=0, description="weight of a penalty on the actor's mean squared action"
    )
    gradient_clip: float | None = Field(
        None,
        gt=0,
        description="largest absolute value of each component of dQ/da in the actor's loss; larger ones are clipped to "
        "it; null: no clipping",
    )


@register("ddpg", DDPGConfig)
class DDPG(ActorCritic[DDPGConfig]):
    """Deterministic actor and one critic."""

    targets = {"critic_target": "critic", "actor_target": "actor"}

    def _create_networks(self) -> None:
        self.nets = nn.ModuleDict(
            {
                "actor": self._create_actor(self.config.actor),
                "critic": self._create_critic(self.config.critic),
            }
        )
        self._add_targets()

    # ---- losses --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _target(self, batch: Batch) -> Tensor:
        """Return the TD target for the critic, in the shape of the batch's rewards (B,) or (B, V), without gradient."""
        from_data = self.config.target == "data"
        actions = batch["next_actions"] if from_data else self._target_actions(batch)
        values = self._critic("critic_target")(batch["next_obs"], actions, batch["goal_obs"])
        return cast(Tensor, batch["rewards"] + batch["discounts"] * self._ensemble_value(values))

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
        actions, most = self._policy_actions(batch), self.config.gradient_clip
        if most is not None and actions.requires_grad:
            limit = most / len(actions)
            actions.register_hook(lambda slope: slope.clamp(-limit, limit))  # type: ignore[no-untyped-call]
        values = self._critic("critic")(batch["obs"], actions, batch["goal_obs"])
        value = self._total(self._ensemble_value(values))
        loss = -masked_mean(value, batch["weight"])
        if self.config.action_l2:
            size = actions.square().mean(-1)
            loss = loss + self.config.action_l2 * masked_mean(size, batch["weight"])
        return loss, {"Actor_Loss": loss}

    def _update(self, batch: Batch, update: Update) -> None:
        """Update critic, actor and targets, in this order."""
        update.step("critic", self._critic_loss(batch))
        update.step("actor", self._actor_loss(batch))
        if update.learn:
            self._follow()
