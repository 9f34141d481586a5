"""Implicit Q-learning: values of the dataset's own actions, and regression towards the better ones.

Kostrikov, Nair, Levine, "Offline Reinforcement Learning with Implicit Q-Learning", ICLR 2022 (arXiv:2110.06169). With
targets Q' of the critics Q, minima over the ensemble, and the discount g:

    L_V = E[ L2_tau(min Q'(s, a) - V(s)) ],  L2_tau(u) = |tau - 1(u < 0)| u^2       -> IQL._value_loss
    L_Q = E[ (r + g V(s') - Q(s, a))^2 ], without V(s') after a terminal             -> IQL._critic_loss
    L_pi = -E[ min(exp(beta (min Q'(s, a) - V(s))), 100) log pi(a | s) ]             -> IQL._actor_loss

Only actions in the data are ever evaluated. The order is as in the authors' code: V, actor, Q, targets; the actor and
L_Q use the new V.

The keys are robomimic's. Departure: in robomimic, all losses use V from before the step. As in robomimic,
``adv.beta`` is a temperature, the inverse of the paper's beta: 1/3 for locomotion, 0.1 for antmaze, 2 for kitchen and
adroit. The authors' recipes, which scale rewards, do not normalize observations and learn one standard deviation for
all states, are ready configurations: ``iql_locomotion``, ``iql_antmaze``, ``iql_adroit``.
"""

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.actor_critic import ActorCritic, Update
from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.factory import register
from imitate.algo.base.rl_sections import ActorCriticConfig, CriticConfig, StochasticActorConfig
from imitate.algo.slots.memory import ReplayedMemoryConfig
from imitate.config import Section
from imitate.config.optimizer import Networks, networks
from imitate.functional.losses import advantage_weights, expectile_loss, masked_mean

MAX_WEIGHT = 100.0
"""Largest weight of an action, if ``adv.use_final_clip`` is set."""


class AdvantageConfig(Section):
    """Weighting of actions by their advantages."""

    clip_adv_value: float | None = Field(
        None,
        description="advantages above this value are clipped to it before the exponential; null: no clipping",
    )
    beta: float = Field(
        1.0,
        gt=0,
        description="temperature: actions have the weights exp(advantage / beta); a smaller beta prefers the best "
        "actions more",
    )
    use_final_clip: bool = Field(True, description="limit the weights of actions to 100")


class IQLConfig(ActorCriticConfig):
    """Options of algorithm ``iql``, under ``algo``."""

    optim_params: Networks = networks("IQLOptimParams", critic=1e-4, vf=1e-4, actor=1e-4)
    target_tau: float = Field(
        0.01, gt=0, le=1, description="Polyak rate of the critics' targets per update"
    )
    vf_quantile: float = Field(
        0.9,
        gt=0,
        lt=1,
        description="V learns this expectile of the actions' values; 0.5 is the mean",
    )
    actor: StochasticActorConfig = Field(StochasticActorConfig())
    critic: CriticConfig = Field(CriticConfig())
    adv: AdvantageConfig = Field(AdvantageConfig())
    rnn: ReplayedMemoryConfig = Field(ReplayedMemoryConfig())


@register("iql", IQLConfig)
class IQL(ActorCritic[IQLConfig]):
    """Expectile regression of V, critics that use V, and an actor trained by advantage-weighted regression."""

    def _create_networks(self) -> None:
        config = self.config
        self.nets = nn.ModuleDict(
            {
                "actor": self._create_actor(config.actor),
                "critic": self._create_critic(config.critic),
                "vf": self._create_critic(config.critic, of_states=True),
            }
        )
        self._add_targets()

    def _value(self, obs: Batch, goal: Batch | None) -> Tensor:
        """Return V (B,)."""
        value: Tensor = self._critic("vf")(obs, None, goal)[0]
        return value

    @torch.no_grad()
    def _target_q(self, batch: Batch) -> Tensor:
        """Return Q' (B,) of the data's actions."""
        # with a recurrent encoder, target critics see the features of the target encoder
        obs = batch.get("target_obs", batch["obs"])
        values = self._critic("critic_target")(obs, batch["actions"], batch["goal_obs"])
        return self._ensemble_value(values)

    def _value_loss(self, batch: Batch, target_q: Tensor) -> tuple[Tensor, Info]:
        value = self._value(batch["obs"], batch["goal_obs"])
        errors = expectile_loss(target_q - value, self.config.vf_quantile)
        loss = masked_mean(errors, batch["weight"])
        return loss, {"Vf_Loss": loss, "V": value.mean()}

    @torch.no_grad()
    def _values_here_and_next(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return V(s) and V(s'), (B,) each, in one pass."""
        both = {key: torch.cat([x, batch["next_obs"][key]]) for key, x in batch["obs"].items()}
        goal = batch["goal_obs"]
        if goal is not None:
            goal = {key: torch.cat([x, x]) for key, x in goal.items()}
        here, following = self._value(both, goal).chunk(2)
        return here, following

    def _actor_loss(self, batch: Batch, advantage: Tensor) -> tuple[Tensor, Info]:
        config = self.config.adv
        weights = advantage_weights(
            advantage,
            config.beta,
            config.clip_adv_value,
            MAX_WEIGHT if config.use_final_clip else None,
        )
        features, _ = self.actor(batch["obs"], batch["goal_obs"])
        log_prob = self.actor.head(features).log_prob(batch["actions"])
        loss = masked_mean(-weights * log_prob, batch["weight"])
        return loss, {
            "Actor_Loss": loss,
            "Log_Likelihood": log_prob.mean(),
            "Advantage": advantage.mean(),
            "Advantage_Weight": weights.mean(),
        }

    def _critic_loss(self, batch: Batch, following: Tensor) -> tuple[Tensor, Info]:
        target = batch["rewards"] + batch["discounts"] * following
        values = self._critic("critic")(batch["obs"], batch["actions"], batch["goal_obs"])
        loss = self._td_loss(values, target, batch["weight"])
        return loss, {"Critic_Loss": loss, "Q": values.mean()}

    def _update(self, batch: Batch, update: Update) -> None:
        """Update V, actor, Q and target networks, in this order."""
        target_q = self._target_q(batch)
        update.step("vf", self._value_loss(batch, target_q))
        here, following = self._values_here_and_next(batch)
        update.step("actor", self._actor_loss(batch, target_q - here))
        update.step("critic", self._critic_loss(batch, following))
        if update.learns("critic"):
            self._follow()
