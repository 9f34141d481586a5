"""Residual reinforcement learning: a frozen policy acts, and what is learned corrects it a little.

Silver et al., "Residual Policy Learning" (arXiv:1812.06298); Johannink et al., "Residual Reinforcement Learning for
Robot Control", ICRA 2019 (arXiv:1812.03201); for frozen imitation policies Ankile et al. (arXiv:2509.19301). With the
frozen policy b, the correction f in [-1, 1] and its reach k:

    pi(s) = clip(b(s) + k f(s, b(s)), -1, 1), f = 0 at the start                             -> Residual._corrected
    in practice f has noise, and stays within [-1, 1]                                        -> Residual._act
    critics as in TD3 with this pi, its target with that f's target                          -> Residual._target_actions
    actor:   -mean over e of Q_e(s, pi(s)) + p mean |Q| f(s, b(s))^2                         -> Residual._actor_loss

The frozen policy may be of any kind, and is never looked into. Critics judge the action that was taken, so that
demonstrations and practice are one (``train.online.demo_ratio``).

The penalty is this toolkit's: akin to that of Andrychowicz et al., "Hindsight Experience Replay", NIPS 2017
(arXiv:1707.01495), on what enters the actor's tanh, and measured against the values as in TD3+BC (arXiv:2106.06860).
With rewards at success alone one action hardly changes a value, less than the critics err; an optimizer that divides
by the gradient's size would follow these errors to the end of the reach, everywhere. So the correction stays away from
0 only where it is worth something.

Departures: the clip has the gradient 1, so that a correction that has gone beyond the limits can return. In updates a
policy with a memory decides as at an episode's start, from no more than ``train.frame_stack`` observations.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.algo import Algo, Batch, Info, PolicyStep
from imitate.algo.exploration import next_noise
from imitate.algo.factory import register_algo_factory_func
from imitate.algo.frozen import FrozenPolicy, FrozenPolicyConfig, UponFrozenPolicy
from imitate.algo.policy_state import PolicyState
from imitate.algo.rl_sections import wants_practice
from imitate.algo.td3 import TD3, TD3Config, TD3CriticConfig
from imitate.functional.losses import masked_mean
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.heads import DeterministicHead
from imitate.models.mlp import MLP


class ResidualCriticConfig(TD3CriticConfig):
    """Critics that stay modest where they have seen nothing."""

    layer_norm: bool = Field(True, description="layer normalization after each ReLU")


class ResidualConfig(TD3Config):
    """Section ``algo`` of algorithm ``residual``."""

    tree_defaults = {
        "train": {"batch_size": 256, "online": {"enabled": True, "warmup_policy": "policy"}}
    }

    base: FrozenPolicyConfig = Field(FrozenPolicyConfig())
    reach: float = Field(
        0.2, gt=0, le=2, description="the largest correction of an action between -1 and 1"
    )
    penalty: float = Field(
        0.05,
        ge=0,
        description="weight of the mean square of the correction, in units of the mean absolute value",
    )
    critic: ResidualCriticConfig = Field(ResidualCriticConfig())

    def conflicts(self, config: Any) -> list[str]:
        """Combinations that cannot be trained."""
        return super().conflicts(config) + wants_practice(config)


@register_algo_factory_func("residual", section=ResidualConfig)
def algo_config_to_class(algo_config: ResidualConfig) -> tuple[type[Algo], dict[str, Any]]:
    """There is one class."""
    return Residual, {}


class Correction(nn.Module):
    """f(s, b), 0 at the start."""

    def __init__(self, encoder: GroupEncoder, ac_dim: int, config: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.mlp = MLP(encoder.output_dim + ac_dim, config.layer_dims, dropout=config.dropout)
        self.head = DeterministicHead(self.mlp.output_dim, ac_dim)
        nn.init.zeros_(self.head.action.weight)
        nn.init.zeros_(self.head.action.bias)

    def forward(self, obs: Obs, base: Tensor, goal: Obs | None = None) -> Tensor:
        """Corrections (B, A) of the frozen policy's actions ``base`` (B, A)."""
        features = torch.cat([self.encoder(obs, goal), base], dim=-1)
        return self.head.act(self.mlp(features))


class Residual(UponFrozenPolicy, TD3):
    """TD3 of a frozen policy and its correction."""

    acting_nets = ("base",)

    def _create_networks(self) -> None:
        config = self.algo_config
        correction = Correction(self._create_encoder(), self.ac_dim, config.actor)
        critic = self._create_critic(config.critic)
        self.nets = nn.ModuleDict({"actor": correction, "critic": critic})
        self._add_targets()
        self.nets["base"] = FrozenPolicy(self.ac_dim)
        self._critic_updates = 0

    # ---- losses --------------------------------------------------------------------------------------------------

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        base, correction = self._decided(batch)
        actions = self._corrected(base, correction)
        values = self._critic("critic")(batch["obs"], actions, batch["goal_obs"]).mean(0)
        square = correction.square().mean(-1)
        weight = self.algo_config.penalty * values.detach().abs().mean()
        loss = masked_mean(weight * square - values, batch["weight"])
        return loss, {"Actor_Loss": loss, "Correction": square.mean().sqrt()}

    # ---- actions -------------------------------------------------------------------------------------------------

    def _corrected(self, base: Tensor, correction: Tensor) -> Tensor:
        """The action (B, A), within the limits."""
        action: Tensor = base + self.algo_config.reach * correction
        return action + (action.clamp(-1.0, 1.0) - action).detach()

    def _decided(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """What the frozen policy would do in the batch's states, and its correction with gradient, (B, A) each."""
        obs = batch["obs"]
        base = self.base.act_afresh(obs, self.preprocess, self.frame_stack)
        return base, self.nets["actor"](obs, base, batch["goal_obs"])

    def _policy_actions(self, batch: Batch) -> Tensor:
        """What it would do in the batch's states, with gradient."""
        return self._corrected(*self._decided(batch))

    @torch.no_grad()
    def _target_actions(self, batch: Batch) -> Tensor:
        """What the target correction would make of the next states, with clipped noise on it."""
        config, obs = self.algo_config.actor, batch["next_obs"]
        base = self.base.act_afresh(obs, self.preprocess, self.frame_stack)
        correction = self.nets["actor_target"](obs, base, batch["goal_obs"])
        noise = torch.randn_like(correction) * config.noise_std
        noise = noise.clamp(-config.noise_clip, config.noise_clip)
        return self._corrected(base, (correction + noise).clamp(-1.0, 1.0))

    def _validation_info(self, batch: Batch) -> Info:
        """As in the base class."""
        return {"Action_Error": (self._policy_actions(batch) - batch["actions"]).abs().mean()}

    # ---- test time -----------------------------------------------------------------------------------------------

    def _act(
        self,
        obs: dict[str, Tensor],
        state: PolicyState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep:
        base, base_state = self._base_step(obs, state, generator)
        correction, noise = self.nets["actor"](obs, base, goal), state["noise"]
        if explore:
            noise = next_noise(noise, self.algo_config.exploration, self._progress, generator)
            correction = (correction + noise).clamp(-1.0, 1.0)
        action = self._corrected(base, correction)
        return PolicyStep(action, {"noise": noise, "base": base_state}, {})
