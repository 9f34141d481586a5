"""Q-chunking (QC): critics evaluate chunks of actions, and the policy takes the best of several cloned chunks.

Li, Zhou, Levine, "Reinforcement Learning with Action Chunking", NeurIPS 2025 (arXiv:2507.07969). With chunks a of K
actions, noise x_0 from N(0, 1), a time t from [0, 1], x_t = (1 - t) x_0 + t a and the velocity field v of a flow:

    L_v = E[ |v(s, x_t, t) - (a - x_0)|^2 ], without the steps after the end of an episode          -> QC._flow_loss
    policy(s): of N chunks of the flow, clipped, the one with the largest mean_i Q_i                -> QC.policy_chunks
    L_Q = E[ (r_0 + ... + g^(K-1) r_K-1 + g^K mean_i Q'_i(s', policy(s')) - Q_j(s, a))^2 ]          -> QC._critic_loss

``actor.enabled`` is the variant QC-FQL, whose policy is that of FQL (Park, Li, Levine, arXiv:2502.02538) over chunks,
with one step instead of a choice:

    policy(s) = clip(mu(s, z))                                                               -> QC.policy_chunks
    L_mu = E[ alpha |mu(s, z) - flow(s, z)|^2 - mean_i Q_i(s, clip(mu(s, z))) ]              -> QC._actor_loss

Squares are averaged over the numbers of a chunk. All K actions are executed, in training and at test time. Offline and
online training are the same; online, demonstrations are part of each batch (``train.online.demo_ratio``).
Departures: a chunk that a terminal cuts short is learned from, while the authors leave it out (so that only the single
chunk that ends at the terminal sees a success); means are over valid steps and chunks instead of the whole batch, which
scales the losses; losses are minimized in turn, and losses of critics are summed instead of averaged; layers have
torch's default initialization. Apart from these factors, losses and gradients equal those of the authors' code.
"""

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
    ChunkCriticsConfig,
    FlowChoiceConfig,
    MeanCriticConfig,
)
from imitate.algo.base.sections import LayerDims
from imitate.config.optimizer import Networks, networks
from imitate.functional.losses import masked_mean
from imitate.functional.sampling import pick_class
from imitate.models.denoiser import NoiseNetwork


class QCActorConfig(ActorConfig):
    """One-step policy of the variant QC-FQL."""

    enabled: bool = Field(
        False,
        description="act with a learned one-step policy (QC-FQL); false: with the best of several chunks of the flow",
    )
    layer_dims: LayerDims = Field(FLOW_WIDTHS, description="widths of the hidden layers")
    distill_weight: float = Field(
        100.0,
        ge=0,
        description="alpha: weight of the penalty on the distance to the flow's chunks; tune it to the scale of values",
    )


class QCConfig(ChunkCriticsConfig):
    """Options of algorithm ``qc``, under ``algo``."""

    tree_defaults = {"train": {"batch_size": 256}}

    optim_params: Networks = networks("QCOptimParams", critic=3e-4, flow=3e-4, actor=3e-4)
    flow: FlowChoiceConfig = Field(FlowChoiceConfig())
    actor: QCActorConfig = Field(QCActorConfig())
    critic: MeanCriticConfig = Field(MeanCriticConfig())


@register("qc", QCConfig)
class QC(ActorCritic[QCConfig]):
    """Flow that clones chunks, and critics that choose the best chunk or train a one-step policy."""

    main_net = "flow"

    def _create_networks(self) -> None:
        config = self.config
        self.nets = nn.ModuleDict(
            {
                "flow": self._create_noise_network(config.flow.layer_dims, has_time=True),
                "critic": self._create_critic(config.critic, num_actions=self.chunk_steps),
            }
        )
        if config.actor.enabled:
            self.nets["actor"] = self._create_noise_network(
                config.actor.layer_dims, has_time=False, dropout=config.actor.dropout
            )
        self.acting_nets = ("actor",) if config.actor.enabled else ("critic",)
        self._add_targets()

    def _create_noise_network(
        self, layer_dims: LayerDims, *, has_time: bool, dropout: float = 0.0
    ) -> NoiseNetwork:
        size = self.chunk_steps * self.ac_dim
        return NoiseNetwork(
            self._create_encoder(), layer_dims, size, has_time=has_time, dropout=dropout
        )

    @property
    def flow(self) -> NoiseNetwork:
        """Velocity field of the flow from noise to actions."""
        return cast(NoiseNetwork, self.active_nets["flow"])

    @property
    def one_step(self) -> NoiseNetwork:
        """The one-step policy, which exists only if ``algo.actor.enabled`` is true."""
        return cast(NoiseNetwork, self.active_nets["actor"])

    def _chunks(self, flat: Tensor) -> Tensor:
        """Reshape flat chunks (B, K A) to (B, K, A)."""
        return flat.reshape(*flat.shape[:-1], self.chunk_steps, self.ac_dim)

    def _max_grad_norm(self, name: str) -> float | None:
        return super()._max_grad_norm("actor" if name == "flow" else name)

    def policy_chunks(
        self, obs: Batch, goal: Batch | None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the policy's flat chunks (B, K A), by the one-step policy or as the best of N chunks of the flow."""
        config = self.config.flow
        if self.config.actor.enabled:
            return self.one_step.actions(obs, goal, generator)
        candidates = self.flow.candidates(
            obs, goal, config.num_candidates, config.num_steps, generator
        )
        values = self._ensemble_value(self._critic("critic")(obs, candidates, goal))
        return pick_class(candidates, values.argmax(-1))

    # ---- losses --------------------------------------------------------------------------------------------------

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        goal = batch["goal_obs"]
        with torch.no_grad():
            chunks = self.policy_chunks(batch["next_obs"], goal)
            following = self._critic("critic_target")(batch["next_obs"], chunks, goal)
            target = batch["rewards"] + batch["discounts"] * self._ensemble_value(following)
        values = self._critic("critic")(batch["obs"], batch["chunk"], goal)
        loss = self._td_loss(values, target, batch["valid"])
        return loss, {"Critic_Loss": loss, "Q": values.mean(), "Q_Targets": target.mean()}

    def _flow_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        mask = batch["chunk_mask"].float()
        squares = self.flow.cloning_errors(batch["obs"], batch["goal_obs"], batch["chunk"])
        errors = self._chunks(squares).mean(-1)
        weight = batch["weight"]
        loss = masked_mean(errors, mask if weight is None else mask * weight.unsqueeze(-1))
        return loss, {"Flow_Loss": loss}

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        config, obs, goal = self.config, batch["obs"], batch["goal_obs"]
        noise = torch.randn_like(batch["chunk"])
        chunks = self.one_step(self.one_step.encoder(obs, goal), noise)
        with torch.no_grad():
            cloned = self.flow.follow(self.flow.encoder(obs, goal), noise, config.flow.num_steps)
        distance = (chunks - cloned).square().mean(-1)
        values = self._critic("critic")(obs, chunks.clamp(-1.0, 1.0), goal).mean(0)
        loss = masked_mean(config.actor.distill_weight * distance - values, batch["weight"])
        return loss, {
            "Actor_Loss": loss,
            "Distillation_Loss": masked_mean(distance, batch["weight"]),
            "Q_Policy": values.mean(),
        }

    def _validation_info(self, batch: Batch) -> Info:
        """Mean absolute difference between the policy's and the data's chunks, in normalized units."""
        made = self.policy_chunks(batch["obs"], batch["goal_obs"])
        errors = self._chunks((made - batch["chunk"]).abs()).mean(-1)
        return {"Action_Error": masked_mean(errors, batch["chunk_mask"].float())}

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """Update the critics, the flow, the one-step policy if there is one, and the target networks."""
        update.step("critic", self._critic_loss(batch))
        update.step("flow", self._flow_loss(batch))
        if self.config.actor.enabled:
            update.step("actor", self._actor_loss(batch))
        if update.learns("critic"):
            self._follow()

    # ---- test time -----------------------------------------------------------------------------------------------

    def _decide(
        self, obs: Batch, goal: Batch | None, explore: bool, generator: torch.Generator | None
    ) -> Tensor:
        return self._chunks(self.policy_chunks(obs, goal, generator))
