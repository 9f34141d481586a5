"""Deep deterministic policy gradient.

Lillicrap et al., "Continuous control with deep reinforcement learning", ICLR 2016 (arXiv:1509.02971). With targets
pi', Q' and the discount g:

    L_Q = E[ (r + g Q'(s', pi'(s')) - Q(s, a))^2 ], without Q' after a terminal       -> DDPG._critic_loss
    L_pi = -E[ Q(s, pi(s)) ]                                                          -> DDPG._actor_loss

In practice actions have the noise of an Ornstein-Uhlenbeck process (``exploration``), which begins at 0 with each
episode. Departures: no weight decay, no batch normalization, a ``target_tau`` of 0.005.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor

from imitate.algo.algo import Algo, Batch, Info
from imitate.algo.deterministic_actor import DeterministicActor
from imitate.algo.exploration import ActionNoiseConfig
from imitate.algo.factory import register_algo_factory_func
from imitate.algo.rl_sections import (
    ActorConfig,
    ActorCriticConfig,
    CriticConfig,
    EnsembleConfig,
    StagedOptimizerConfig,
    optimizer,
)
from imitate.algo.sections import LayerDims
from imitate.config import Section
from imitate.functional.losses import masked_mean


class DDPGOptimParams(Section):
    """Optimizers by network."""

    critic: StagedOptimizerConfig = Field(optimizer(1e-3))
    actor: StagedOptimizerConfig = Field(optimizer(1e-3))


class DDPGActorConfig(ActorConfig):
    """A deterministic actor."""

    layer_dims: LayerDims = Field((256, 256), description="hidden layers")


class DDPGCriticConfig(CriticConfig):
    """A single critic."""

    layer_dims: LayerDims = Field((256, 256), description="hidden layers")
    ensemble: EnsembleConfig = Field(EnsembleConfig(n=1))


class DDPGConfig(ActorCriticConfig):
    """Section ``algo`` of algorithm ``ddpg``."""

    tree_defaults = {"train": {"batch_size": 256, "online": {"enabled": True}}}

    optim_params: DDPGOptimParams = Field(DDPGOptimParams())
    actor: DDPGActorConfig = Field(DDPGActorConfig())
    critic: DDPGCriticConfig = Field(DDPGCriticConfig())
    exploration: ActionNoiseConfig = Field(ActionNoiseConfig(std=0.2, damping=0.15))


@register_algo_factory_func("ddpg", section=DDPGConfig)
def algo_config_to_class(algo_config: DDPGConfig) -> tuple[type[Algo], dict[str, Any]]:
    """There is one class."""
    return DDPG, {}


class DDPG(DeterministicActor):
    """Deterministic actor, one critic."""

    @torch.no_grad()
    def _target(self, batch: Batch) -> Tensor:
        """(B,) what the critic is to say."""
        actions = self._target_actions(batch)
        values = self._critic("critic_target")(batch["next_obs"], actions, batch["goal_obs"])
        return cast(Tensor, batch["rewards"] + batch["discounts"] * self._ensemble_value(values))

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        target = self._target(batch)
        values = self._critic("critic")(batch["obs"], batch["actions"], batch["goal_obs"])
        loss = self._td_loss(values, target, batch["weight"])
        return loss, {"Critic_Loss": loss, "Q": values.mean(), "Q_Targets": target.mean()}

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        values = self._critic("critic")(
            batch["obs"], self._policy_actions(batch), batch["goal_obs"]
        )
        loss = -masked_mean(self._ensemble_value(values), batch["weight"])
        return loss, {"Actor_Loss": loss}

    def _update(self, batch: Batch, epoch: int, learn: bool) -> Info:
        """Critic, actor, targets."""
        info = self._step("critic", self._critic_loss(batch), epoch, learn)
        info |= self._step("actor", self._actor_loss(batch), epoch, learn)
        if learn:
            self._follow()
        return info
