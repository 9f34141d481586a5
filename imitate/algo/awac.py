"""AWAC: critics evaluate the actor's own actions, and the actor imitates the better actions of the data.

Nair, Gupta, Dalal, Levine, "AWAC: Accelerating Online Reinforcement Learning with Offline Datasets", 2020
(arXiv:2006.09359). With targets Q' and the discount g:

    L_Q = E[ (r + g min_i Q'_i(s', a') - Q_j(s, a))^2 ],  a' ~ pi(. | s')             -> AWAC._critic_loss
    A(s, a) = min_i Q_i(s, a) - V(s),  V(s) = E_{a ~ pi} min_i Q_i(s, a)              -> AWAC._advantage
    L_pi = -E[ exp(A(s, a) / lambda) log pi(a | s) ]                                  -> AWAC._actor_loss

V is estimated by ``num_action_samples`` actions of the actor. Departure: weights are clipped at ``max_weight`` (as in
CORL), not normalized over the batch. The order is critics, actor, targets. robomimic has no AWAC; keys with the same
meaning as in ``iql`` have the same names.
"""

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.actor_critic import ActorCritic, Update
from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.factory import register
from imitate.algo.base.rl_sections import ActorCriticConfig, CriticConfig, StochasticActorConfig
from imitate.algo.base.sections import LayerDims
from imitate.config import Section
from imitate.config.optimizer import Networks, networks
from imitate.functional.losses import advantage_weights, masked_mean


class AWACActorConfig(StochasticActorConfig):
    """Stochastic actor, by default with two hidden layers of 256 units."""

    layer_dims: LayerDims = Field((256, 256), description="widths of the hidden layers")


class AWACCriticConfig(CriticConfig):
    """Critics, by default with two hidden layers of 256 units."""

    layer_dims: LayerDims = Field((256, 256), description="widths of the hidden layers")


class AWACAdvantageConfig(Section):
    """Weighting of actions by their advantages."""

    beta: float = Field(
        1.0, gt=0, description="the paper's lambda: weights are exp(advantage / beta)"
    )
    max_weight: float | None = Field(
        100.0,
        gt=0,
        description="weights of actions above this value are clipped to it; null: no clipping",
    )
    num_action_samples: int = Field(
        1,
        ge=1,
        description="number of sampled actions whose mean value estimates the value of a state",
    )


class AWACConfig(ActorCriticConfig):
    """Options of algorithm ``awac``, under ``algo``."""

    optim_params: Networks = networks("AWACOptimParams", critic=3e-4, actor=3e-4)
    actor: AWACActorConfig = Field(AWACActorConfig())
    critic: AWACCriticConfig = Field(AWACCriticConfig())
    adv: AWACAdvantageConfig = Field(AWACAdvantageConfig())


@register("awac", AWACConfig)
class AWAC(ActorCritic[AWACConfig]):
    """Critics of the actor's policy, and an actor trained by advantage-weighted regression."""

    def _create_networks(self) -> None:
        config = self.config
        self.nets = nn.ModuleDict(
            {
                "actor": self._create_actor(config.actor),
                "critic": self._create_critic(config.critic),
            }
        )
        self._add_targets()

    @torch.no_grad()
    def _sampled_actions(self, obs: Batch, goal: Batch | None, count: int) -> Tensor:
        """Sample actions of the actor, (B, count, A) within [-1, 1]."""
        features, _ = self.actor(obs, goal)
        repeated = features.unsqueeze(1).expand(-1, count, -1)
        actions: Tensor = self.actor.head(repeated).sample()
        return actions.clamp(-1.0, 1.0)

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        goal = batch["goal_obs"]
        with torch.no_grad():
            actions = self._sampled_actions(batch["next_obs"], goal, 1)[:, 0]
            following = self._critic("critic_target")(batch["next_obs"], actions, goal)
            target = batch["rewards"] + batch["discounts"] * self._ensemble_value(following)
        values = self._critic("critic")(batch["obs"], batch["actions"], goal)
        loss = self._td_loss(values, target, batch["weight"])
        return loss, {"Critic_Loss": loss, "Q": values.mean()}

    @torch.no_grad()
    def _advantage(self, batch: Batch) -> Tensor:
        """Return the advantages (B,) of the data's actions: their values minus the mean value of the actor's."""
        obs, goal, critic = batch["obs"], batch["goal_obs"], self._critic("critic")
        actions = self._sampled_actions(obs, goal, self.config.adv.num_action_samples)
        value = self._ensemble_value(critic(obs, actions, goal)).mean(-1)
        return self._ensemble_value(critic(obs, batch["actions"], goal)) - value

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        config = self.config.adv
        advantage = self._advantage(batch)
        weights = advantage_weights(advantage, config.beta, max_weight=config.max_weight)
        features, _ = self.actor(batch["obs"], batch["goal_obs"])
        log_prob = self.actor.head(features).log_prob(batch["actions"])
        loss = masked_mean(-weights * log_prob, batch["weight"])
        return loss, {
            "Actor_Loss": loss,
            "Log_Likelihood": log_prob.mean(),
            "Advantage": advantage.mean(),
            "Advantage_Weight": weights.mean(),
        }

    def _update(self, batch: Batch, update: Update) -> None:
        """Update critics, actor and target networks, in this order."""
        update.step("critic", self._critic_loss(batch))
        update.step("actor", self._actor_loss(batch))
        if update.learns("critic"):
            self._follow()
