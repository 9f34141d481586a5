"""Flow Q-learning (FQL): a flow clones the data, and a one-step policy that stays near it maximizes values.

Park, Li, Levine, "Flow Q-Learning", ICML 2025 (arXiv:2502.02538). With noise z and x_0 from N(0, 1), a time t from
[0, 1], x_t = (1 - t) x_0 + t a, the velocity field v of the flow, and the one-step policy mu:

    flow(s, z) = clip(x), where x begins as z and moves by v(s, x, k / K) / K for k = 0 ... K - 1   -> FQL.flow_actions
    L_Q = E[ (r + g mean_i Q'_i(s', clip(mu(s', z))) - Q_j(s, a))^2 ]                             -> FQL._critic_loss
    L_v = E[ |v(s, x_t, t) - (a - x_0)|^2 ]                                                       -> FQL._flow_loss
    L_mu = E[ alpha |mu(s, z) - flow(s, z)|^2 - lambda mean_i Q_i(s, clip(mu(s, z))) ],
           lambda = 1, or 1 / mean |Q| without gradient                                           -> FQL._actor_loss

Squares are averaged over the dimensions of actions. Values never pass through the steps of the flow, and acting takes
one step: the policy is mu(s, z) with new noise z, also in evaluation. Hidden layers of both networks have GELU.
Given the same weights, noise and batch, losses and gradients equal those of the authors' code.
Departures: the losses are minimized in turn, so that the policy's loss uses the updated critics; losses of critics are
summed instead of averaged; layers have torch's default initialization. ``critic.ensemble.weight`` 0.5 makes the value
the mean of two critics. robomimic has no FQL.
"""

from functools import partial
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.actor_critic import ActorCritic, Update
from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.factory import register
from imitate.algo.base.rl_sections import (
    FLOW_WIDTHS,
    ActorConfig,
    ActorCriticConfig,
    FlowFieldConfig,
    MeanCriticConfig,
)
from imitate.algo.base.sections import LayerDims
from imitate.config.optimizer import Networks, networks
from imitate.functional.losses import masked_mean
from imitate.models.denoiser import NoiseNetwork


class FQLActorConfig(ActorConfig):
    """One-step policy."""

    layer_dims: LayerDims = Field(FLOW_WIDTHS, description="widths of the hidden layers")
    distill_weight: float = Field(
        10.0,
        ge=0,
        description="alpha: weight of the penalty on the distance to the flow's actions; tune it to the scale of "
        "values (3 to 1000)",
    )
    normalize_q: bool = Field(
        False, description="divide values in the actor's loss by their mean magnitude"
    )


class FQLConfig(ActorCriticConfig):
    """Options of algorithm ``fql``, under ``algo``."""

    tree_defaults = {"train": {"batch_size": 256}}

    optim_params: Networks = networks("FQLOptimParams", critic=3e-4, flow=3e-4, actor=3e-4)
    actor: FQLActorConfig = Field(FQLActorConfig())
    flow: FlowFieldConfig = Field(FlowFieldConfig())
    critic: MeanCriticConfig = Field(MeanCriticConfig())


@register("fql", FQLConfig)
class FQL(ActorCritic[FQLConfig]):
    """One-step policy that maximizes the critics' values and stays near a flow that clones the data."""

    def _create_networks(self) -> None:
        config = self.config
        make = partial(NoiseNetwork, action_dim=self.ac_dim)
        encoder, actor = self._create_encoder, config.actor
        self.nets = nn.ModuleDict(
            {
                "actor": make(encoder(), actor.layer_dims, has_time=False, dropout=actor.dropout),
                "flow": make(encoder(), config.flow.layer_dims, has_time=True),
                "critic": self._create_critic(config.critic),
            }
        )
        self._add_targets()

    @property
    def one_step(self) -> NoiseNetwork:
        """The one-step policy, which acts."""
        return cast(NoiseNetwork, self.active_nets["actor"])

    @property
    def flow(self) -> NoiseNetwork:
        """Velocity field of the flow from noise to actions."""
        return cast(NoiseNetwork, self.nets["flow"])

    def _max_grad_norm(self, name: str) -> float | None:
        return super()._max_grad_norm("actor" if name == "flow" else name)

    # ---- losses --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def flow_actions(self, batch: Batch, noise: Tensor) -> Tensor:
        """Return the actions (B, A) to which the flow moves noise (B, A) in the batch's states."""
        features = self.flow.encoder(batch["obs"], batch["goal_obs"])
        return self.flow.follow(features, noise, self.config.flow.num_steps)

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        goal = batch["goal_obs"]
        with torch.no_grad():
            actions = self.one_step.actions(batch["next_obs"], goal)
            following = self._critic("critic_target")(batch["next_obs"], actions, goal)
            target = batch["rewards"] + batch["discounts"] * self._ensemble_value(following)
        values = self._critic("critic")(batch["obs"], batch["actions"], goal)
        loss = self._td_loss(values, target, batch["weight"])
        return loss, {"Critic_Loss": loss, "Q": values.mean()}

    def _flow_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        errors = self.flow.cloning_errors(batch["obs"], batch["goal_obs"], batch["actions"])
        loss = masked_mean(errors.mean(-1), batch["weight"])
        return loss, {"Flow_Loss": loss}

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        config, obs, goal = self.config.actor, batch["obs"], batch["goal_obs"]
        noise = torch.randn_like(batch["actions"])
        actions = self.one_step(self.one_step.encoder(obs, goal), noise)
        distance = (actions - self.flow_actions(batch, noise)).square().mean(-1)
        values = self._critic("critic")(obs, actions.clamp(-1.0, 1.0), goal).mean(0)
        scaled = values
        if config.normalize_q:
            scaled = values / values.abs().mean().detach().clamp(min=1e-8)
        loss = masked_mean(config.distill_weight * distance - scaled, batch["weight"])
        return loss, {
            "Actor_Loss": loss,
            "Distillation_Loss": masked_mean(distance, batch["weight"]),
            "Q_Policy": values.mean(),
        }

    def _validation_info(self, batch: Batch) -> Info:
        """Mean absolute difference between actions with new noise and the data's, in normalized units."""
        made = self.one_step.actions(batch["obs"], batch["goal_obs"])
        return {"Action_Error": (made - batch["actions"]).abs().mean()}

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """Update the critics, the flow, the one-step policy and the target networks, in this order."""
        update.step("critic", self._critic_loss(batch))
        update.step("flow", self._flow_loss(batch))
        update.step("actor", self._actor_loss(batch))
        if update.learn:
            self._follow()

    # ---- test time -----------------------------------------------------------------------------------------------

    def _decide(
        self, obs: Batch, goal: Batch | None, explore: bool, generator: torch.Generator | None
    ) -> Tensor:
        return self.one_step.actions(obs, goal, generator)
