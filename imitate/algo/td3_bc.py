"""TD3+BC: deterministic policy gradient, held near the data by regression.

Fujimoto, Gu, "A Minimalist Approach to Offline Reinforcement Learning", NeurIPS 2021 (arXiv:2106.06860), on top of TD3
(Fujimoto, van Hoof, Meger, ICML 2018, arXiv:1802.09477). With targets pi', Q' and the discount g:

    a' = clip(pi'(s') + clip(noise, -c, c), -1, 1)                                    -> DelayedActor
    L_Q = E[ (r + g min_i Q'_i(s', a') - Q_j(s, a))^2 ], without Q' after a terminal  -> TD3._critic_loss
    L_pi = -lambda E[ Q_1(s, pi(s)) ] + E[ (pi(s) - a)^2 ],
           lambda = alpha / mean |Q_1(s, pi(s))|, without gradient                    -> TD3_BC._actor_loss

The actor and all targets follow every ``actor.update_freq``-th update of the critics. Observations are normalized
(``train.obs_normalization``), which is part of the method.

Departures from robomimic, whose keys these are: the number of updates is saved, so that a resumed training goes on
exactly; the actor's loss is computed only where it is used.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field
from torch import Tensor

from imitate.algo.algo import Algo, Batch, Info
from imitate.algo.delayed_actor import DelayedActorConfig
from imitate.algo.exploration import ActionNoiseConfig
from imitate.algo.factory import register_algo_factory_func
from imitate.algo.rl_sections import (
    ActorCriticConfig,
    StagedOptimizerConfig,
    optimizer,
)
from imitate.algo.td3 import TD3, TD3CriticConfig
from imitate.config import Section
from imitate.functional.losses import masked_mean


class TD3BCOptimParams(Section):
    """Optimizers by network."""

    critic: StagedOptimizerConfig = Field(optimizer(3e-4))
    actor: StagedOptimizerConfig = Field(optimizer(3e-4))


class TD3BCConfig(ActorCriticConfig):
    """Section ``algo`` of algorithm ``td3_bc``."""

    tree_defaults = {"train": {"obs_normalization": "mean_std", "batch_size": 256}}

    optim_params: TD3BCOptimParams = Field(TD3BCOptimParams())
    alpha: float = Field(2.5, ge=0, description="weight of values against regression; 0 is BC")
    actor: DelayedActorConfig = Field(DelayedActorConfig())
    critic: TD3CriticConfig = Field(TD3CriticConfig())
    exploration: ActionNoiseConfig = Field(ActionNoiseConfig())


@register_algo_factory_func("td3_bc", section=TD3BCConfig)
def algo_config_to_class(algo_config: TD3BCConfig) -> tuple[type[Algo], dict[str, Any]]:
    """There is one class."""
    return TD3_BC, {}


class TD3_BC(TD3):  # noqa: N801 - the name users know
    """TD3 with an actor between values and the data."""

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        actions = self._policy_actions(batch)
        values = self._critic("critic")(batch["obs"], actions, batch["goal_obs"])[0]
        scale = self.algo_config.alpha / values.abs().mean().detach().clamp(min=1e-8)
        distance = masked_mean((actions - batch["actions"]).square().mean(-1), batch["weight"])
        loss = distance - scale * masked_mean(values, batch["weight"])
        return loss, {"Actor_Loss": loss, "BC_Distance": distance, "Q_Policy": values.mean()}
