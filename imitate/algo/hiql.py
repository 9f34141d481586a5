"""Hierarchical implicit Q-learning (HIQL): a high level chooses a subgoal some steps ahead, a low level the action.

Park, Ghosh, Eysenbach, Levine, "HIQL: Offline Goal-Conditioned RL with Latent States as Actions", NeurIPS 2023
(arXiv:2307.11949), with goals and settings of OGBench (Park et al., ICLR 2025, arXiv:2410.20092). With the reward
r = -1, or 0 in the goal, the discount d, which is 0 in the goal, a representation R(s, g) of length sqrt(K), values
V_i(s, g) = V_i(s, R(s, g)), targets V'_i, which use the same R, V = mean_i V_i, and w the state n steps after s:

    A' = r + d min_i V'_i(s', g) - mean_i V'_i(s, g)
    L_V = sum_i E[ |tau - 1(A' < 0)| (r + d V'_i(s', g) - V_i(s, g))^2 ]                        -> HIQL._value_loss
    L_low = -E[ min(exp(alpha_l (V(s', w) - V(s, w))), 100) log pi_l(a | s, R(s, w)) ]            -> HIQL._low_loss
    L_high = -E[ min(exp(alpha_h (V(w, g) - V(s, g))), 100) log pi_h(R(s, w) | s, g) ]            -> HIQL._high_loss

w is not later than g (:mod:`imitate.data.batches.goals`). Policies are Gaussians of unit variance. The representation
learns from L_V alone. Acting: the high level's mean, scaled to length sqrt(K), is the goal of the low level in each
step. All losses of an update use the networks from before the update. Departures: each network has its own image
encoders; the representation gets no gradient from the low level, not even for images; target networks follow the values
after their step, in OGBench before it. robomimic has no HIQL.
"""

from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.actor_critic import Update
from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.factory import register
from imitate.algo.base.goal_conditioned import (
    MAX_WEIGHT,
    GoalConditioned,
    GoalConditionedConfig,
    GoalCriticConfig,
    ValueGoalsConfig,
)
from imitate.config import BaseConfig
from imitate.config.optimizer import Networks, networks
from imitate.functional.losses import advantage_weights, masked_mean
from imitate.models.goal_networks import GoalActor, SubgoalValue, to_sphere


class HIQLConfig(GoalConditionedConfig):
    """Options of algorithm ``hiql``, under ``algo``."""

    optim_params: Networks = networks("HIQLOptimParams", actor=3e-4, high_actor=3e-4, value=3e-4)
    target_tau: float = Field(
        0.005,
        gt=0,
        le=1,
        description="Polyak rate of the target values: share of the online weights that they take over per update",
    )
    expectile: float = Field(
        0.7, gt=0, lt=1, description="tau: V learns this expectile of the next states' values"
    )
    low_alpha: float = Field(
        3.0,
        gt=0,
        description="the low-level actor imitates actions with the weights exp(low_alpha advantage)",
    )
    high_alpha: float = Field(
        3.0,
        gt=0,
        description="the high-level actor imitates subgoals with the weights exp(high_alpha advantage)",
    )
    subgoal_steps: int = Field(25, ge=1, description="n: number of steps to a subgoal")
    rep_dim: int = Field(10, ge=1, description="K: size of a goal's representation")
    value_goals: ValueGoalsConfig = Field(ValueGoalsConfig())
    critic: GoalCriticConfig = Field(GoalCriticConfig())

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        problems, observation = super().conflicts(config), config.observation
        if config.use_goals and observation.modality_of("goal") != observation.modality_of("obs"):
            problems.append(
                "observation.modalities: goal and obs differ, but hiql evaluates subgoals as states: list the same "
                "observations in both"
            )
        if config.train.frame_stack > 1:
            problems.append(
                f"train.frame_stack is {config.train.frame_stack}, but hiql evaluates subgoals, which are single "
                "observations, as states: set it to 1"
            )
        return problems


@register("hiql", HIQLConfig)
class HIQL(GoalConditioned[HIQLConfig]):
    """Expectile regression of V(s, R(s, g)), and two actors trained by advantage-weighted regression."""

    acting_nets = ("high_actor",)
    targets = {"value_target": "value"}

    def _create_networks(self) -> None:
        config, critic = self.config, self.config.critic
        low = GoalActor(
            self.encoding.encoder(goals=False), config.actor.layer_dims, self.ac_dim, config.rep_dim
        )
        high = GoalActor(self._create_encoder(), config.actor.layer_dims, config.rep_dim)
        value = SubgoalValue(
            self.encoding.encoder(goals=False),
            self._create_encoder(),
            critic.layer_dims,
            config.rep_dim,
            layer_norm=critic.layer_norm,
        )
        self.nets = nn.ModuleDict({"actor": low, "high_actor": high, "value": value})
        self._add_targets()

    @property
    def value(self) -> SubgoalValue:
        """Network of the values and of the representation of goals."""
        return cast(SubgoalValue, self.nets["value"])

    # ---- losses --------------------------------------------------------------------------------------------------

    def _value_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        goal, rewards, discounts = batch["value_goals"], batch["rewards"], batch["discounts"]
        # target networks replace only the MLPs of V; goals are represented by the online network
        target_net = cast(SubgoalValue, self.nets["value_target"]).mlps
        with torch.no_grad():
            following = self.value(batch["next_obs"], goal, target_net)
            here = self.value(batch["obs"], goal, target_net)
            advantage = rewards + discounts * following.amin(0) - here.mean(0)
            share = torch.where(advantage >= 0, self.config.expectile, 1.0 - self.config.expectile)
            target = rewards + discounts * following
        values = self.value(batch["obs"], goal)
        errors = (share * (target - values).square()).sum(0)
        loss = masked_mean(errors, batch["weight"])
        return loss, {"Value_Loss": loss, "V": values.mean()}

    def _low_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        obs, subgoal = batch["obs"], batch["low_goals"]
        with torch.no_grad():
            here = self.value(obs, subgoal).mean(0)
            advantage = self.value(batch["next_obs"], subgoal).mean(0) - here
            weights = advantage_weights(advantage, 1.0 / self.config.low_alpha, None, MAX_WEIGHT)
            rep = self.value.represent(obs, subgoal)
        mean = self.actor(obs, None, rep)
        loss, info = self._imitation_loss(mean, batch["actions"], batch["weight"], weights)
        return loss, {"Actor_Loss": loss, **info, "Advantage": advantage.mean()}

    def _high_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        obs, goal, subgoal = batch["obs"], batch["goal_obs"], batch["high_targets"]
        with torch.no_grad():
            here = self.value(obs, goal).mean(0)
            advantage = self.value(subgoal, goal).mean(0) - here
            weights = advantage_weights(advantage, 1.0 / self.config.high_alpha, None, MAX_WEIGHT)
            rep = self.value.represent(obs, subgoal)
        mean = self.nets["high_actor"](obs, goal)
        loss, info = self._imitation_loss(mean, rep, batch["weight"], weights)
        return loss, {
            "High_Actor_Loss": loss,
            "High_Action_MSE": info["Action_MSE"],
            "High_Advantage": advantage.mean(),
        }

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """Update the two actors, the values and their targets; each loss uses the networks from before the update."""
        update.step("actor", self._low_loss(batch))
        update.step("high_actor", self._high_loss(batch))
        update.step("value", self._value_loss(batch))
        if update.learns("value"):
            self._follow()

    # ---- test time -----------------------------------------------------------------------------------------------

    def _mean_actions(self, obs: Batch, goal: Batch | None) -> Tensor:
        rep = to_sphere(self.active_nets["high_actor"](obs, goal))
        mean: Tensor = self.actor(obs, None, rep)
        return mean
