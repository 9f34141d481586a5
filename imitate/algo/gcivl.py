"""Goal-conditioned implicit V-learning (GCIVL): values of states for goals, and cloning of actions that raise values.

Park et al., "OGBench: Benchmarking Offline Goal-Conditioned RL", ICLR 2025 (arXiv:2410.20092), appendix; the value
learning is that of Park et al., "HIQL", NeurIPS 2023 (arXiv:2307.11949), a version of IQL (Kostrikov et al.,
arXiv:2110.06169) without Q. With the reward r = -1, or 0 in the goal, the discount d, which is 0 in the goal, two
values V_i and their targets V'_i:

    A' = r + d min_i V'_i(s', g) - mean_i V'_i(s, g)
    L_V = sum_i E[ |tau - 1(A' < 0)| (r + d V'_i(s', g) - V_i(s, g))^2 ]                        -> GCIVL._value_loss
    L_pi = -E[ min(exp(alpha A), 100) log pi(a | s, g) ], A = mean_i V_i(s', g) - mean_i V_i(s, g),
           pi a Gaussian of unit variance                                                      -> GCIVL._actor_loss

The advantage of the target networks determines the weight of the online values' regression, as in double DQN. Without
Q, luck in the dynamics counts as skill: values are optimistic where transitions are random.
Departures: images of state and goal have separate encoders; target networks follow the values after their step, in
OGBench before it. robomimic has no GCIVL.
"""

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
from imitate.config.optimizer import Networks, networks
from imitate.functional.losses import advantage_weights, masked_mean
from imitate.models.goal_networks import GoalActor


class GCIVLConfig(GoalConditionedConfig):
    """Options of algorithm ``gcivl``, under ``algo``."""

    optim_params: Networks = networks("GCIVLOptimParams", actor=3e-4, value=3e-4)
    target_tau: float = Field(
        0.005,
        gt=0,
        le=1,
        description="Polyak rate of the target values: share of the online weights that they take over per update",
    )
    expectile: float = Field(
        0.9, gt=0, lt=1, description="tau: V learns this expectile of the next states' values"
    )
    alpha: float = Field(
        10.0, gt=0, description="weights of actions are exp(alpha advantage); larger is greedier"
    )
    value_goals: ValueGoalsConfig = Field(ValueGoalsConfig())
    critic: GoalCriticConfig = Field(GoalCriticConfig())


@register("gcivl", GCIVLConfig)
class GCIVL(GoalConditioned[GCIVLConfig]):
    """Expectile regression of V(s, g), and an actor trained by advantage-weighted regression."""

    targets = {"value_target": "value"}

    def _create_networks(self) -> None:
        actor = GoalActor(self._create_encoder(), self.config.actor.layer_dims, self.ac_dim)
        self.nets = nn.ModuleDict({"actor": actor, "value": self._create_value()})
        self._add_targets()

    # ---- losses --------------------------------------------------------------------------------------------------

    def _value_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        goal, rewards, discounts = batch["value_goals"], batch["rewards"], batch["discounts"]
        with torch.no_grad():
            following = self.nets["value_target"](batch["next_obs"], goal)
            here = self.nets["value_target"](batch["obs"], goal)
            advantage = rewards + discounts * following.amin(0) - here.mean(0)
            share = torch.where(advantage >= 0, self.config.expectile, 1.0 - self.config.expectile)
            target = rewards + discounts * following
        values = self.nets["value"](batch["obs"], goal)
        errors = (share * (target - values).square()).sum(0)
        loss = masked_mean(errors, batch["weight"])
        return loss, {"Value_Loss": loss, "V": values.mean()}

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        goal = batch["goal_obs"]
        with torch.no_grad():
            here = self.nets["value"](batch["obs"], goal).mean(0)
            advantage = self.nets["value"](batch["next_obs"], goal).mean(0) - here
            weights = advantage_weights(advantage, 1.0 / self.config.alpha, None, MAX_WEIGHT)
        mean = self.actor(batch["obs"], goal)
        loss, info = self._imitation_loss(mean, batch["actions"], batch["weight"], weights)
        return loss, {
            "Actor_Loss": loss,
            **info,
            "Advantage": advantage.mean(),
            "Advantage_Weight": weights.mean(),
        }

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """Update the actor, the values and the targets; advantages are computed before the values are updated."""
        update.step("actor", self._actor_loss(batch))
        update.step("value", self._value_loss(batch))
        if update.learns("value"):
            self._follow()
