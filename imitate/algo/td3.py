"""Twin delayed DDPG (TD3): deterministic policy gradient with the minimum of two critics.

Fujimoto, van Hoof, Meger, "Addressing Function Approximation Error in Actor-Critic Methods", ICML 2018
(arXiv:1802.09477). With targets pi', Q' and the discount g:

    a' = clip(pi'(s') + clip(noise, -c, c), -1, 1)                                    -> TD3._next_actions
    L_Q = E[ (r + g min_i Q'_i(s', a') - Q_j(s, a))^2 ], without Q' after a terminal  -> TD3._critic_loss
    L_pi = -E[ Q_1(s, pi(s)) ]                                                        -> TD3._actor_loss

The actor and all target networks are updated after every ``actor.update_freq``-th update of the critics. In rollouts,
Gaussian noise is added to the actions (``exploration``).
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


class TD3CriticConfig(CriticConfig):
    """Critics, by default with two hidden layers of 256 units."""

    layer_dims: LayerDims = Field((256, 256), description="widths of the hidden layers")


class TD3Config(ActorCriticConfig):
    """Options of algorithm ``td3``, under ``algo``."""

    value_per_reward = True
    tree_defaults = {"train": {"batch_size": 256, "online": {"enabled": True}}}

    optim_params: Networks = networks("TD3OptimParams", critic=1e-3, actor=1e-3)
    actor: DelayedActorConfig = Field(DelayedActorConfig())
    critic: TD3CriticConfig = Field(TD3CriticConfig())
    exploration: ActionNoiseConfig = Field(ActionNoiseConfig())


@register("td3", TD3Config)
class TD3(ActorCritic[TD3Config]):
    """Deterministic actor and twin critics."""

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
        return loss, {
            "Critic_Loss": loss,
            "Q": self._total(values).mean(),
            "Q_Targets": self._total(target).mean(),
        }

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        actions = self._policy_actions(batch)
        values = self._critic("critic")(batch["obs"], actions, batch["goal_obs"])[0]
        loss = -masked_mean(self._total(values), batch["weight"])
        return loss, {"Actor_Loss": loss}

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """Update the critics; every ``actor.update_freq`` updates also the actor and the target networks."""
        update.step("critic", self._critic_loss(batch))
        if update.turn("critic_updates", self.config.actor.update_freq):
            update.step("actor", self._actor_loss(batch))
            if update.learn:
                self._follow()
