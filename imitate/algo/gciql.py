"""Goal-conditioned implicit Q-learning (GCIQL): IQL with hindsight goals for values and actor.

Kostrikov, Nair, Levine, "Offline Reinforcement Learning with Implicit Q-Learning", ICLR 2022 (arXiv:2110.06169), with
goals as in OGBench (Park et al., ICLR 2025, arXiv:2410.20092). With the reward r = -1, or 0 in the goal, the discount
d, which is 0 in the goal, two critics Q_i and their targets Q'_i:

    L_V = E[ L2_tau(min_i Q'_i(s, a, g) - V(s, g)) ],  L2_tau(u) = |tau - 1(u < 0)| u^2         -> GCIQL._value_loss
    L_Q = sum_i E[ (r + d V(s', g) - Q_i(s, a, g))^2 ]                                          -> GCIQL._critic_loss
    L_pi = -E[min_i Q_i(s, m, g)] / E|min_i Q_i(s, m, g)| - alpha E[ log pi(a | s, g) ],
           m = clip(mean of pi), the divisor without gradient (``ddpgbc``), or
         = -E[ min(exp(alpha (min_i Q_i(s, a, g) - V(s, g))), 100) log pi(a | s, g) ] (``awr``)
                                                                                            -> GCIQL._extraction_loss

pi is a Gaussian of unit variance. All losses of an update use the networks from before the update. Departures: images
of state and goal have separate encoders; target networks follow the critics after their step, in OGBench before it.
robomimic has no GCIQL.
"""

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.actor_critic import Update
from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.factory import register
from imitate.algo.base.goal_conditioned import (
    ExtractionConfig,
    GoalConditioned,
    GoalCriticConfig,
    ValueGoalsConfig,
)
from imitate.config.optimizer import Networks, networks
from imitate.functional.losses import expectile_loss, masked_mean
from imitate.models.goal_networks import GoalActor


class GCIQLConfig(ExtractionConfig):
    """Options of algorithm ``gciql``, under ``algo``."""

    optim_params: Networks = networks("GCIQLOptimParams", actor=3e-4, critic=3e-4, vf=3e-4)
    target_tau: float = Field(
        0.005,
        gt=0,
        le=1,
        description="Polyak rate of the target critics: share of the online weights that they take over per update",
    )
    expectile: float = Field(
        0.9, gt=0, lt=1, description="tau: V learns this expectile of the actions' values"
    )
    value_goals: ValueGoalsConfig = Field(ValueGoalsConfig())
    critic: GoalCriticConfig = Field(GoalCriticConfig())


@register("gciql", GCIQLConfig)
class GCIQL(GoalConditioned[GCIQLConfig]):
    """Expectile regression of V(s, g), critics that use V, and an actor trained by critics and data."""

    targets = {"critic_target": "critic"}

    def _create_networks(self) -> None:
        actor = GoalActor(self._create_encoder(), self.config.actor.layer_dims, self.ac_dim)
        critic, value = self._create_value(of_actions=True), self._create_value(size=1)
        self.nets = nn.ModuleDict({"actor": actor, "critic": critic, "vf": value})
        self._add_targets()

    # ---- losses --------------------------------------------------------------------------------------------------

    def _value_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        obs, goal = batch["obs"], batch["value_goals"]
        with torch.no_grad():
            target = self.nets["critic_target"](obs, goal, batch["actions"]).amin(0)
        value = self.nets["vf"](obs, goal)[0]
        loss = masked_mean(expectile_loss(target - value, self.config.expectile), batch["weight"])
        return loss, {"Vf_Loss": loss, "V": value.mean()}

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        goal = batch["value_goals"]
        with torch.no_grad():
            following = self.nets["vf"](batch["next_obs"], goal)[0]
            target = batch["rewards"] + batch["discounts"] * following
        values = self.nets["critic"](batch["obs"], goal, batch["actions"])
        loss = masked_mean((values - target).square().sum(0), batch["weight"])
        return loss, {"Critic_Loss": loss, "Q": values.mean()}

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """Update the actor, Q, V and the targets; each loss uses the networks from before the update."""
        update.step("actor", self._extraction_loss(batch))
        update.step("critic", self._critic_loss(batch))
        update.step("vf", self._value_loss(batch))
        if update.learns("critic"):
            self._follow()
