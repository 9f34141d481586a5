"""Twin delayed DDPG: deterministic policy gradient with the lesser of two critics, in practice.

Fujimoto, van Hoof, Meger, "Addressing Function Approximation Error in Actor-Critic Methods", ICML 2018
(arXiv:1802.09477). With targets pi', Q' and the discount g:

    a' = clip(pi'(s') + clip(noise, -c, c), -1, 1)                                    -> DelayedActor
    L_Q = E[ (r + g min_i Q'_i(s', a') - Q_j(s, a))^2 ], without Q' after a terminal  -> TD3._critic_loss
    L_pi = -E[ Q_1(s, pi(s)) ]                                                        -> TD3._actor_loss

The actor and all targets follow every ``actor.update_freq``-th update of the critics. In practice actions have Gaussian
noise (``exploration``).
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from imitate.algo.algo import Algo, Batch, Info
from imitate.algo.delayed_actor import DelayedActor, DelayedActorConfig
from imitate.algo.exploration import ActionNoiseConfig
from imitate.algo.factory import register_algo_factory_func
from imitate.algo.rl_sections import (
    ActorCriticConfig,
    CriticConfig,
    StagedOptimizerConfig,
    optimizer,
)
from imitate.algo.sections import LayerDims
from imitate.config import Section
from imitate.functional.losses import masked_mean


class TD3OptimParams(Section):
    """Optimizers by network."""

    critic: StagedOptimizerConfig = Field(optimizer(1e-3))
    actor: StagedOptimizerConfig = Field(optimizer(1e-3))


class TD3CriticConfig(CriticConfig):
    """Critics of 256 by 256."""

    layer_dims: LayerDims = Field((256, 256), description="hidden layers")


class TD3Config(ActorCriticConfig):
    """Section ``algo`` of algorithm ``td3``."""

    tree_defaults = {"train": {"batch_size": 256, "online": {"enabled": True}}}

    optim_params: TD3OptimParams = Field(TD3OptimParams())
    actor: DelayedActorConfig = Field(DelayedActorConfig())
    critic: TD3CriticConfig = Field(TD3CriticConfig())
    exploration: ActionNoiseConfig = Field(ActionNoiseConfig())


@register_algo_factory_func("td3", section=TD3Config)
def algo_config_to_class(algo_config: TD3Config) -> tuple[type[Algo], dict[str, Any]]:
    """There is one class."""
    return TD3, {}


class TD3(DelayedActor):
    """Deterministic actor, twin critics."""

    # ---- losses --------------------------------------------------------------------------------------------------

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        goal = batch["goal_obs"]
        with torch.no_grad():
            following = self._critic("critic_target")(
                batch["next_obs"], self._target_actions(batch), goal
            )
            target = batch["rewards"] + batch["discounts"] * self._ensemble_value(following)
        values = self._critic("critic")(batch["obs"], batch["actions"], goal)
        loss = self._td_loss(values, target, batch["weight"])
        return loss, {"Critic_Loss": loss, "Q": values.mean(), "Q_Targets": target.mean()}

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        values = self._critic("critic")(
            batch["obs"], self._policy_actions(batch), batch["goal_obs"]
        )[0]
        loss = -masked_mean(values, batch["weight"])
        return loss, {"Actor_Loss": loss}
