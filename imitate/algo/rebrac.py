"""ReBRAC: TD3 with layer normalization in the critics and two penalties on leaving the data.

Tarasov, Kurenkov, Nikulin, Kolesnikov, "Revisiting the Minimalist Approach to Offline Reinforcement Learning", NeurIPS
2023 (arXiv:2305.09836). With targets pi', Q', the discount g, a_next the action that the data took in s', and a' the
target actor's smoothed action:

    L_Q = E[ (r + g (min_i Q'_i(s', a') - beta_2 |a' - a_next|^2) - Q_j(s, a))^2 ]    -> ReBRAC._critic_loss
    L_pi = E[ beta_1 |pi(s) - a|^2 - lambda min_i Q_i(s, pi(s)) ],
           lambda = 1 / mean |min_i Q_i|, without gradient, or 1                      -> ReBRAC._actor_loss

Squares are summed over the dimensions of actions. There is no bootstrapping after a terminal. The next action of a
demo's last step is not known; see :mod:`imitate.data.batches.windows`. Critics normalize after each ReLU, as the
authors' code does.
Departure: layers have torch's default initialization instead of biases of 0.1. robomimic has no ReBRAC; keys are as in
``td3_bc``.
"""

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.actor_critic import ActorCritic, Update
from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.factory import register
from imitate.algo.base.rl_sections import ActorCriticConfig, CriticConfig, DelayedActorConfig
from imitate.algo.base.sections import LayerDims
from imitate.algo.slots.exploration import ActionNoiseConfig
from imitate.config.optimizer import Networks, networks
from imitate.functional.losses import masked_mean
from imitate.functional.sampling import smoothed_actions


class ReBRACActorConfig(DelayedActorConfig):
    """Actor, and the penalty on its distance to the data's actions."""

    layer_dims: LayerDims = Field((256, 256, 256), description="widths of the hidden layers")
    bc_weight: float = Field(
        1.0,
        ge=0,
        description="beta_1: weight of the penalty on the squared distance to the data's actions",
    )
    normalize_q: bool = Field(
        True, description="divide values in the actor's loss by their mean magnitude"
    )


class ReBRACCriticConfig(CriticConfig):
    """Critics; their targets have a penalty on the distance to the data's next actions."""

    layer_dims: LayerDims = Field((256, 256, 256), description="widths of the hidden layers")
    layer_norm: bool = Field(True, description="layer normalization after each ReLU")
    bc_weight: float = Field(
        1.0,
        ge=0,
        description="beta_2: weight of the squared distance to the data's next actions, subtracted from target values",
    )


class ReBRACConfig(ActorCriticConfig):
    """Options of algorithm ``rebrac``, under ``algo``."""

    tree_defaults = {"train": {"batch_size": 1024}}
    needs_next_actions = True

    optim_params: Networks = networks("ReBRACOptimParams", critic=1e-3, actor=1e-3)
    actor: ReBRACActorConfig = Field(ReBRACActorConfig())
    critic: ReBRACCriticConfig = Field(ReBRACCriticConfig())
    exploration: ActionNoiseConfig = Field(ActionNoiseConfig())


@register("rebrac", ReBRACConfig)
class ReBRAC(ActorCritic[ReBRACConfig]):
    """Deterministic actor; both losses have a penalty for leaving the data."""

    targets = {"critic_target": "critic", "actor_target": "actor"}

    def _create_networks(self) -> None:
        self.counters["critic_updates"] = 0
        self.nets = nn.ModuleDict(
            {
                "actor": self._create_actor(self.config.actor),
                "critic": self._create_critic(self.config.critic),
            }
        )
        self._add_targets()

    # ---- losses --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _next_actions(self, batch: Batch) -> Tensor:
        """Return the target actor's actions (B, A) in the next states, with clipped noise added."""
        config = self.config.actor
        return smoothed_actions(self._target_actions(batch), config.noise_std, config.noise_clip)

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        goal = batch["goal_obs"]
        with torch.no_grad():
            actions = self._next_actions(batch)
            values = self._critic("critic_target")(batch["next_obs"], actions, goal)
            distance = (actions - batch["next_actions"]).square().sum(-1)
            following = self._ensemble_value(values) - self.config.critic.bc_weight * distance
            target = batch["rewards"] + batch["discounts"] * following
        values = self._critic("critic")(batch["obs"], batch["actions"], goal)
        loss = self._td_loss(values, target, batch["weight"])
        return loss, {"Critic_Loss": loss, "Q": values.mean()}

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        config = self.config.actor
        actions = self._policy_actions(batch)
        values = self._critic("critic")(batch["obs"], actions, batch["goal_obs"]).amin(0)
        distance = (actions - batch["actions"]).square().sum(-1)
        scaled = values
        if config.normalize_q:
            scaled = values / values.abs().mean().detach().clamp(min=1e-8)
        loss = masked_mean(config.bc_weight * distance - scaled, batch["weight"])
        return loss, {
            "Actor_Loss": loss,
            "BC_Distance": masked_mean(distance, batch["weight"]),
            "Q_Policy": values.mean(),
        }

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """Update the critics; every ``actor.update_freq`` updates also the actor and the target networks."""
        update.step("critic", self._critic_loss(batch))
        if update.turn("critic_updates", self.config.actor.update_freq):
            update.step("actor", self._actor_loss(batch))
            if update.learn:
                self._follow()
