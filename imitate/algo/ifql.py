"""Implicit flow Q-learning (IFQL): act with the most valuable of several actions of a flow that clones the data.

Park, Li, Levine, "Flow Q-Learning", ICML 2025 (arXiv:2502.02538), where it is a baseline: implicit diffusion Q-learning
(Hansen-Estruch et al., arXiv:2304.10573) with a flow. Values are those of IQL (Kostrikov et al., arXiv:2110.06169).
With noise x_0 from N(0, 1), a time t from [0, 1], x_t = (1 - t) x_0 + t a and the velocity field v of the flow:

    L_Q = E[ (r + g V(s') - Q_j(s, a))^2 ], without V(s') after a terminal                       -> IFQL._critic_loss
    L_V = E[ L2_tau(min_i Q'_i(s, a) - V(s)) ],  L2_tau(u) = |tau - 1(u < 0)| u^2                -> IFQL._value_loss
    L_v = E[ |v(s, x_t, t) - (a - x_0)|^2 ]                                                      -> IFQL._flow_loss
    policy(s): of N actions of the flow, clipped, the one with the largest min_i Q_i             -> IFQL.best_actions

Critics learn only from actions of the data, and the policy's loss has no weight to tune to the scale of values. Losses
are minimized in an order in which none depends on a network that was just updated, as in the authors' single step.
Given the same weights, noise and batch, losses and gradients equal those of the authors' code. Departure: layers have
torch's default initialization.
"""

from typing import ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.actor_critic import ActorCritic, Update
from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.factory import register
from imitate.algo.base.rl_sections import ActorCriticConfig, FlowChoiceConfig, FlowCriticConfig
from imitate.config.optimizer import Networks, networks
from imitate.functional.losses import expectile_loss, masked_mean
from imitate.functional.sampling import pick_class
from imitate.models.denoiser import NoiseNetwork


class IFQLConfig(ActorCriticConfig):
    """Options of algorithm ``ifql``, under ``algo``."""

    tree_defaults = {"train": {"batch_size": 256}}

    optim_params: Networks = networks("IFQLOptimParams", critic=3e-4, vf=3e-4, flow=3e-4)
    vf_quantile: float = Field(
        0.9,
        gt=0,
        lt=1,
        description="V learns this expectile of the actions' values; 0.5 is the mean",
    )
    flow: FlowChoiceConfig = Field(FlowChoiceConfig())
    critic: FlowCriticConfig = Field(FlowCriticConfig())


@register("ifql", IFQLConfig)
class IFQL(ActorCritic[IFQLConfig]):
    """Expectile regression of V, critics that use V, and the best of a flow's actions."""

    main_net: ClassVar[str] = "flow"
    acting_nets = ("critic",)

    def _create_networks(self) -> None:
        config = self.config
        self.nets = nn.ModuleDict(
            {
                "flow": NoiseNetwork(
                    self._create_encoder(), config.flow.layer_dims, self.ac_dim, has_time=True
                ),
                "critic": self._create_critic(config.critic),
                "vf": self._create_critic(config.critic, of_states=True),
            }
        )
        self._add_targets()

    @property
    def flow(self) -> NoiseNetwork:
        """Velocity field of the flow from noise to actions."""
        return cast(NoiseNetwork, self.active_nets["flow"])

    def _max_grad_norm(self, name: str) -> float | None:
        return super()._max_grad_norm("critic" if name == "flow" else name)

    def _value(self, obs: Batch, goal: Batch | None) -> Tensor:
        """Return V (B,)."""
        value: Tensor = self._critic("vf")(obs, None, goal)[0]
        return value

    def best_actions(
        self, obs: Batch, goal: Batch | None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the policy's actions (B, A): for each state, the most valuable of N actions of the flow."""
        config = self.config.flow
        candidates = self.flow.candidates(
            obs, goal, config.num_candidates, config.num_steps, generator
        )
        values = self._ensemble_value(self._critic("critic")(obs, candidates, goal))
        return pick_class(candidates, values.argmax(-1))

    # ---- losses --------------------------------------------------------------------------------------------------

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        goal = batch["goal_obs"]
        with torch.no_grad():
            following = self._value(batch["next_obs"], goal)
            target = batch["rewards"] + batch["discounts"] * following
        values = self._critic("critic")(batch["obs"], batch["actions"], goal)
        loss = self._td_loss(values, target, batch["weight"])
        return loss, {"Critic_Loss": loss, "Q": values.mean()}

    def _value_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        obs, goal = batch["obs"], batch["goal_obs"]
        with torch.no_grad():
            values = self._critic("critic_target")(obs, batch["actions"], goal)
            target = self._ensemble_value(values)
        value = self._value(obs, goal)
        errors = expectile_loss(target - value, self.config.vf_quantile)
        loss = masked_mean(errors, batch["weight"])
        return loss, {"Vf_Loss": loss, "V": value.mean()}

    def _flow_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        errors = self.flow.cloning_errors(batch["obs"], batch["goal_obs"], batch["actions"])
        loss = masked_mean(errors.mean(-1), batch["weight"])
        return loss, {"Flow_Loss": loss}

    def _validation_info(self, batch: Batch) -> Info:
        """Mean absolute difference between the policy's and the data's actions, in normalized units."""
        made = self.best_actions(batch["obs"], batch["goal_obs"])
        return {"Action_Error": (made - batch["actions"]).abs().mean()}

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """Update Q, V, the flow and the target networks, in this order."""
        update.step("critic", self._critic_loss(batch))
        update.step("vf", self._value_loss(batch))
        update.step("flow", self._flow_loss(batch))
        if update.learns("critic"):
            self._follow()

    # ---- test time -----------------------------------------------------------------------------------------------

    def _decide(
        self, obs: Batch, goal: Batch | None, explore: bool, generator: torch.Generator | None
    ) -> Tensor:
        return self.best_actions(obs, goal, generator)
