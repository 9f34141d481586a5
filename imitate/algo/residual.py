"""Residual reinforcement learning: a learned correction of limited size is added to the actions of a frozen policy.

Silver et al., "Residual Policy Learning" (arXiv:1812.06298); Johannink et al., "Residual Reinforcement Learning for
Robot Control", ICRA 2019 (arXiv:1812.03201); for frozen imitation policies Ankile et al. (arXiv:2509.19301). With the
frozen policy b, the correction f in [-1, 1] and its scale k:

    pi(s) = clip(b(s) + k f(s, b(s)), -1, 1), f = 0 at the start                             -> Residual._corrected
    rollouts: noise is added to f, clipped to [-1, 1]                                        -> Residual._act
    critics: as in TD3 with this pi; target actions use f's target network               -> Residual._target_actions
    actor:   -mean over e of Q_e(s, pi(s)) + p mean |Q| f(s, b(s))^2                         -> Residual._actor_loss

The frozen policy may be of any kind; only its actions are used. Critics evaluate the executed action, so that
demonstrations and replayed steps are used alike (``train.online.demo_ratio``).

The penalty with weight p is specific to this toolkit. It is similar to the penalty of Andrychowicz et al., "Hindsight
Experience Replay", NIPS 2017 (arXiv:1707.01495), on the input of the actor's tanh, and scaled by the values as in
TD3+BC (arXiv:2106.06860). With rewards only at success, one action changes a value by less than the critics' errors,
and an optimizer that divides by the gradient's size would follow these errors to the largest correction everywhere.
With the penalty, the correction differs from 0 only if this increases the value.

Departures: the clip has the gradient 1, so that a correction beyond the limits can shrink again. In updates, a policy
with a memory acts as at the start of an episode, from at most ``train.frame_stack`` observations.
"""

from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.actor_critic import ActorCritic, Update
from imitate.algo.base.algo import Batch, Info, PolicyStep
from imitate.algo.base.factory import register
from imitate.algo.base.policy_state import InnerState, PolicyState, newest_frame
from imitate.algo.base.rl_sections import (
    ActorCriticConfig,
    CriticConfig,
    DelayedActorConfig,
    wants_online,
)
from imitate.algo.base.sections import LayerDims
from imitate.algo.slots.exploration import ActionNoiseConfig
from imitate.algo.slots.frozen import FrozenPolicy, FrozenPolicyConfig
from imitate.config import BaseConfig
from imitate.config.optimizer import Networks, networks
from imitate.functional.losses import masked_mean
from imitate.functional.sampling import smoothed_actions
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.heads import DeterministicHead
from imitate.models.mlp import MLP


class ResidualCriticConfig(CriticConfig):
    """Critics with layer normalization, which bounds values far from the data."""

    layer_dims: LayerDims = Field((256, 256), description="widths of the hidden layers")
    layer_norm: bool = Field(True, description="layer normalization after each ReLU")


class ResidualConfig(ActorCriticConfig):
    """Options of algorithm ``residual``, under ``algo``."""

    tree_defaults = {
        "train": {"batch_size": 256, "online": {"enabled": True, "warmup_policy": "policy"}}
    }

    optim_params: Networks = networks("ResidualOptimParams", critic=1e-3, actor=1e-3)
    base: FrozenPolicyConfig = Field(FrozenPolicyConfig())
    reach: float = Field(
        0.2,
        gt=0,
        le=2,
        description="k: largest correction of each number of an action, which is within [-1, 1]",
    )
    penalty: float = Field(
        0.05,
        ge=0,
        description="weight of the penalty on the mean squared correction, relative to the mean absolute value of Q",
    )
    actor: DelayedActorConfig = Field(DelayedActorConfig())
    critic: ResidualCriticConfig = Field(ResidualCriticConfig())
    exploration: ActionNoiseConfig = Field(ActionNoiseConfig())

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        return super().conflicts(config) + wants_online(config)


class Correction(nn.Module):
    """Network f(s, b) of the correction, which returns 0 before training."""

    def __init__(self, encoder: GroupEncoder, ac_dim: int, config: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.mlp = MLP(encoder.output_dim + ac_dim, config.layer_dims, dropout=config.dropout)
        self.head = DeterministicHead(self.mlp.output_dim, ac_dim)
        nn.init.zeros_(self.head.action.weight)
        nn.init.zeros_(self.head.action.bias)

    def forward(self, obs: Obs, base: Tensor, goal: Obs | None = None) -> Tensor:
        """Return corrections (B, A) of the frozen policy's actions ``base`` (B, A)."""
        features = torch.cat([self.encoder(obs, goal), base], dim=-1)
        return self.head.act(self.mlp(features))


@register("residual", ResidualConfig)
class Residual(ActorCritic[ResidualConfig]):
    """Frozen policy and its correction, which is trained like TD3's actor."""

    targets = {"critic_target": "critic", "actor_target": "actor"}
    acting_nets = ("base",)

    def _create_networks(self) -> None:
        self.counters["critic_updates"] = 0
        config = self.config
        correction = Correction(self._create_encoder(), self.ac_dim, config.actor)
        critic = self._create_critic(config.critic)
        self.nets = nn.ModuleDict({"actor": correction, "critic": critic})
        self._add_targets()
        self.nets["base"] = FrozenPolicy(self.ac_dim, self.config.base.checkpoint)

    @property
    def base(self) -> FrozenPolicy:
        """The frozen policy."""
        return cast(FrozenPolicy, self.nets["base"])

    # ---- losses --------------------------------------------------------------------------------------------------

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        goal = batch["goal_obs"]
        with torch.no_grad():
            actions = self._target_actions(batch)
            following = self._critic("critic_target")(batch["next_obs"], actions, goal)
            target = batch["rewards"] + batch["discounts"] * self._ensemble_value(following)
        values = self._critic("critic")(batch["obs"], batch["actions"], goal)
        loss = self._td_loss(values, target, batch["weight"])
        return loss, {"Critic_Loss": loss, "Q": values.mean(), "Q_Targets": target.mean()}

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        base, correction = self._decided(batch)
        actions = self._corrected(base, correction)
        values = self._critic("critic")(batch["obs"], actions, batch["goal_obs"]).mean(0)
        square = correction.square().mean(-1)
        weight = self.config.penalty * values.detach().abs().mean()
        loss = masked_mean(weight * square - values, batch["weight"])
        return loss, {"Actor_Loss": loss, "Correction": square.mean().sqrt()}

    # ---- actions -------------------------------------------------------------------------------------------------

    def _corrected(self, base: Tensor, correction: Tensor) -> Tensor:
        """Return the corrected action (B, A), within the limits."""
        action: Tensor = base + self.config.reach * correction
        return action + (action.clamp(-1.0, 1.0) - action).detach()

    def _decided(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the frozen policy's actions in the batch's states, and their correction with gradient, (B, A) each."""
        obs = batch["obs"]
        base = self.base.act_afresh(obs, self.preprocess, self.frame_stack)
        return base, self.nets["actor"](obs, base, batch["goal_obs"])

    def _policy_actions(self, batch: Batch) -> Tensor:
        """Return corrected actions (B, A) in the batch's states, with gradient."""
        return self._corrected(*self._decided(batch))

    @torch.no_grad()
    def _target_actions(self, batch: Batch) -> Tensor:
        """Return actions (B, A) in the next states, by the correction's target network, with clipped noise added."""
        config, obs = self.config.actor, batch["next_obs"]
        base = self.base.act_afresh(obs, self.preprocess, self.frame_stack)
        correction = self.nets["actor_target"](obs, base, batch["goal_obs"])
        smoothed = smoothed_actions(correction, config.noise_std, config.noise_clip)
        return self._corrected(base, smoothed)

    def _validation_info(self, batch: Batch) -> Info:
        """Mean absolute difference between the actor's and the data's actions, in normalized units."""
        return {"Action_Error": (self._policy_actions(batch) - batch["actions"]).abs().mean()}

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """Update the critics; every ``actor.update_freq`` updates also the correction and the target networks."""
        update.step("critic", self._critic_loss(batch))
        if update.turn("critic_updates", self.config.actor.update_freq):
            update.step("actor", self._actor_loss(batch))
            if update.learn:
                self._follow()

    # ---- test time -----------------------------------------------------------------------------------------------

    def _initial_policy_state(self, batch_size: int) -> InnerState:
        base = self.base.initial_state(batch_size)
        return {**super()._initial_policy_state(batch_size), "base": base}

    def cut_plan(self, state: PolicyState) -> PolicyState:
        """Discard the planned actions, including the frozen policy's plan."""
        return self.base.cut_within(super().cut_plan(state))

    def _act(
        self,
        obs: dict[str, Tensor],
        state: InnerState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep[InnerState]:
        newest = newest_frame(obs, self.frame_stack)
        base, base_state = self.base.act(newest, state["base"], self.preprocess, generator)
        correction, noise = self.nets["actor"](obs, base, goal), state["noise"]
        if explore and self.exploration is not None:
            correction, noise = self.exploration.add_to(correction, state, generator)
        action = self._corrected(base, correction)
        return PolicyStep(action, {"noise": noise, "base": base_state}, {})
