"""TD3+BC: deterministic policy gradient, kept near the data by regression.

Fujimoto, Gu, "A Minimalist Approach to Offline Reinforcement Learning", NeurIPS 2021 (arXiv:2106.06860), on top of TD3
(Fujimoto, van Hoof, Meger, ICML 2018, arXiv:1802.09477). With targets pi', Q' and the discount g:

    a' = clip(pi'(s') + clip(noise, -c, c), -1, 1)                                    -> TD3_BC._next_actions
    L_Q = E[ (r + g min_i Q'_i(s', a') - Q_j(s, a))^2 ], without Q' after a terminal  -> TD3_BC._critic_loss
    L_pi = -lambda E[ Q_1(s, pi(s)) ] + E[ (pi(s) - a)^2 ],
           lambda = alpha / mean |Q_1(s, pi(s))|, without gradient                    -> TD3_BC._actor_loss

The actor and all target networks are updated after every ``actor.update_freq``-th update of the critics. Observations
are normalized (``train.obs_normalization``), which is part of the method.

The keys are robomimic's. Departures from robomimic: the number of updates is saved, so that a resumed training is
exact; the actor's loss is computed only if it is used.
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


class TD3BCCriticConfig(CriticConfig):
    """Critics, by default with two hidden layers of 256 units."""

    layer_dims: LayerDims = Field((256, 256), description="widths of the hidden layers")


class TD3BCConfig(ActorCriticConfig):
    """Options of algorithm ``td3_bc``, under ``algo``."""

    tree_defaults = {"train": {"obs_normalization": "mean_std", "batch_size": 256}}

    optim_params: Networks = networks("TD3BCOptimParams", critic=3e-4, actor=3e-4)
    alpha: float = Field(
        2.5,
        ge=0,
        description="weight of the critics' values relative to the regression loss; 0: behavior cloning alone",
    )
    actor: DelayedActorConfig = Field(DelayedActorConfig())
    critic: TD3BCCriticConfig = Field(TD3BCCriticConfig())
    exploration: ActionNoiseConfig = Field(ActionNoiseConfig())


@register("td3_bc", TD3BCConfig)
class TD3_BC(ActorCritic[TD3BCConfig]):  # noqa: N801 - the name users know
    """Twin critics, and a deterministic actor that trades their values against the distance from the data."""

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
            following = self._critic("critic_target")(batch["next_obs"], actions, goal)
            target = batch["rewards"] + batch["discounts"] * self._ensemble_value(following)
        values = self._critic("critic")(batch["obs"], batch["actions"], goal)
        loss = self._td_loss(values, target, batch["weight"])
        return loss, {"Critic_Loss": loss, "Q": values.mean(), "Q_Targets": target.mean()}

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        actions = self._policy_actions(batch)
        values = self._critic("critic")(batch["obs"], actions, batch["goal_obs"])[0]
        scale = self.config.alpha / values.abs().mean().detach().clamp(min=1e-8)
        distance = masked_mean((actions - batch["actions"]).square().mean(-1), batch["weight"])
        loss = distance - scale * masked_mean(values, batch["weight"])
        return loss, {"Actor_Loss": loss, "BC_Distance": distance, "Q_Policy": values.mean()}

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """Update the critics; every ``actor.update_freq`` updates also the actor and the target networks."""
        update.step("critic", self._critic_loss(batch))
        if update.turn("critic_updates", self.config.actor.update_freq):
            update.step("actor", self._actor_loss(batch))
            if update.learn:
                self._follow()
