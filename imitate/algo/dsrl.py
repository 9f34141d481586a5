"""DSRL, diffusion steering by RL: a learned choice of its initial noise improves a frozen flow or diffusion policy.

Wagenmaker, Nakamoto, Zhang, Park, Yagoub, Nagabandi, Gupta, Levine, "Steering Your Diffusion Policy with Latent Space
Reinforcement Learning", CoRL 2025 (arXiv:2506.15799), in the variant with noise aliasing, which its authors prefer.
The frozen policy b(s, w) is a function of the observation and the noise w, by the steps of the flow or of DDIM; its
chunk a has K executed actions. With the policy of the noise pi(w | s), a tanh-Gaussian within +-limit:

    target = r_t + ... + g^(K-1) r_t+K-1 + g^K min_e Q'_e(s', b(s', w')), w' ~ pi(s')          -> DSRL._target
    critics: mean over the batch, sum over e, of (Q_e(s, a) - target)^2                        -> DSRL._critic_loss
    noise critics: the same of (Q^W_e(s, w) - Q_e(s, b(s, w)))^2, w ~ N(0, 1)             -> DSRL._noise_critic_loss
    actor: E[ alpha log pi(w | s) - min_e Q^W_e(s, w) ], w ~ pi(s)                             -> DSRL._actor_loss
    alpha rises while the entropy is below its target, falls while it is above                 -> EntropyWeight.loss

Q is learned from executed actions, so demonstrations and replayed steps are used alike. Q^W gives the actor a gradient
that does not pass through the frozen policy. The frozen policy always starts from noise similar to that of its
training, so actions stay close to demonstrated actions, whatever noise the actor chooses.

Departures: each member of the ensemble of critics is distilled into its own noise critic; the default network is
smaller (the authors' network has three layers of 2048). ``noise.steps`` below the length of the chunk repeats noise
vectors, as the authors do for long chunks (pi0), which makes the space that is searched smaller.
"""

import math
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.actor_critic import ActorCritic, Update
from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.entropy import (
    EntropyWeight,
    SoftActorConfig,
    SoftActorCriticConfig,
    SoftCriticConfig,
    TemperatureConfig,
    sampled_actions,
)
from imitate.algo.base.factory import register
from imitate.algo.base.rl_sections import (
    ActorConfig,
    ActorNetConfig,
    ChunkCriticsConfig,
    wants_online,
)
from imitate.algo.slots.frozen import FrozenPolicy, FrozenPolicyConfig
from imitate.config import BaseConfig, Section
from imitate.config.optimizer import Networks, networks
from imitate.functional.losses import masked_mean
from imitate.models.critics import CriticEnsemble
from imitate.models.heads import ActionHead, GaussianHead


class NoiseConfig(Section):
    """Noise from which the frozen policy makes its chunks."""

    steps: int = Field(
        1,
        ge=1,
        description="number of noise vectors per predicted chunk, each of which is repeated for an equal number of "
        "actions; 1: one vector for the whole chunk; the policy's prediction_horizon: one vector per action",
    )
    limit: float = Field(
        1.5, gt=0, description="largest magnitude of each number of a noise vector"
    )


class DSRLActorConfig(SoftActorConfig):
    """Policy of the noise. It samples in evaluation too, because the mean of several good noise vectors may be bad."""

    net: ActorNetConfig = Field(
        ActorNetConfig.model_validate(
            {
                "common": {"std_activation": "exp", "use_tanh": True, "low_noise_eval": False},
                "gaussian": {
                    "init_last_fc_weight": None,
                    "min_std": math.exp(-20.0),
                    "max_std": math.exp(2.0),
                },
            }
        )
    )


class DSRLCriticConfig(SoftCriticConfig):
    """Critics of action chunks, and critics of the noise, which have the same layers."""

    layer_norm: bool = Field(True, description="layer normalization after each ReLU")
    noise_updates: int = Field(
        1,
        ge=1,
        description="number of updates of the noise critics per update of the action critics",
    )


class DSRLTemperatureConfig(TemperatureConfig):
    """Temperature: the weight of the entropy of the noise."""

    initial: float = Field(
        0.1, gt=0, description="initial temperature: weight of the entropy in the loss"
    )
    target_entropy: float | None = Field(
        0.0,
        description="target entropy in nats, of the noise divided by noise.limit; null: -(number of values of the "
        "noise)",
    )


class DSRLConfig(ChunkCriticsConfig, SoftActorCriticConfig):
    """Options of algorithm ``dsrl``, under ``algo``."""

    tree_defaults = {
        "train": {"batch_size": 256, "online": {"enabled": True, "warmup_policy": "policy"}}
    }

    optim_params: Networks = networks(
        "DSRLOptimParams", critic=3e-4, noise_critic=3e-4, actor=3e-4, temperature=3e-4
    )
    base: FrozenPolicyConfig = Field(FrozenPolicyConfig())
    noise: NoiseConfig = Field(NoiseConfig())
    actor: DSRLActorConfig = Field(DSRLActorConfig())
    critic: DSRLCriticConfig = Field(DSRLCriticConfig())
    temperature: DSRLTemperatureConfig = Field(DSRLTemperatureConfig())

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings that cannot be trained."""
        return super().conflicts(config) + wants_online(config)


@register("dsrl", DSRLConfig)
class DSRL(ActorCritic[DSRLConfig]):
    """Soft actor-critic whose action is the noise of a frozen policy."""

    acting_nets = ("base",)

    def _create_networks(self) -> None:
        config = self.config
        self.nets = nn.ModuleDict(
            {
                "actor": self._create_actor(config.actor),
                "critic": self._create_critic(config.critic, num_actions=self.chunk_steps),
                "noise_critic": self._create_critic(config.critic, num_actions=config.noise.steps),
            }
        )
        self._add_targets()
        wanted = config.temperature.target_entropy
        size = float(config.noise.steps * self.ac_dim)
        target = torch.tensor(-size if wanted is None else wanted, device=self.device)
        self.entropy = EntropyWeight(config.temperature, target)
        if self.entropy.net is not None:
            self.nets["temperature"] = self.entropy.net
        self.nets["base"] = FrozenPolicy(
            self.ac_dim, config.base.checkpoint, steered=self.chunk_steps
        )

    def _create_head(self, input_dim: int, config: ActorConfig) -> ActionHead:
        net, size = cast(SoftActorConfig, config).net, self.config.noise.steps * self.ac_dim
        return GaussianHead(input_dim, size, **net.gaussian.to_dict(), **net.common.to_dict())

    @property
    def base(self) -> FrozenPolicy:
        """The frozen policy."""
        return cast(FrozenPolicy, self.nets["base"])

    @property
    def noise_critic(self) -> CriticEnsemble:
        """The critics of the noise."""
        return self._critic("noise_critic")

    def _max_grad_norm(self, name: str) -> float | None:
        return None if name == "temperature" else super()._max_grad_norm(name)

    def _chunks_from(self, obs: Batch, noise: Tensor) -> Tensor:
        """Return the chunks (B, K, A) that the frozen policy makes from flat noise (B, S A)."""
        shaped = noise.reshape(len(noise), -1, self.ac_dim)
        return self.base.from_noise(obs, shaped, self.preprocess, self.frame_stack)

    def _sampled_noise(self, obs: Batch, goal: Batch | None) -> tuple[Tensor, Tensor]:
        """Sample noise (B, S A) with gradient, and its log-density (B,) in units of the limit."""
        share, log_prob = sampled_actions(self.actor, obs, goal)
        return self.config.noise.limit * share, log_prob

    # ---- losses --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _target(self, batch: Batch) -> Tensor:
        """Return the TD target (B,), without gradient."""
        obs, goal = batch["next_obs"], batch["goal_obs"]
        noise, _ = self._sampled_noise(obs, goal)
        chunk = self._chunks_from(obs, noise).flatten(1)
        following = self._ensemble_value(self._critic("critic_target")(obs, chunk, goal))
        target: Tensor = batch["rewards"] + batch["discounts"] * following
        return target

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        target = self._target(batch)
        values = self._critic("critic")(batch["obs"], batch["chunk"], batch["goal_obs"])
        loss = self._td_loss(values, target, batch["valid"])
        return loss, {"Critic_Loss": loss, "Q": values.mean(), "Q_Targets": target.mean()}

    def _noise_critic_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        obs, goal = batch["obs"], batch["goal_obs"]
        shape = (len(batch["chunk"]), self.config.noise.steps * self.ac_dim)
        noise = torch.randn(shape, device=batch["chunk"].device)
        with torch.no_grad():
            target = self._critic("critic")(obs, self._chunks_from(obs, noise).flatten(1), goal)
        errors = (self.noise_critic(obs, noise, goal) - target).square()
        loss = masked_mean(errors.sum(0), batch["weight"])
        return loss, {"Noise_Critic_Loss": loss, "Q_Base": target.mean()}

    def _actor_loss(self, batch: Batch) -> tuple[Tensor, Info]:
        obs, goal = batch["obs"], batch["goal_obs"]
        noise, log_prob = self._sampled_noise(obs, goal)
        values = self._ensemble_value(self.noise_critic(obs, noise, goal))
        loss = masked_mean(self.entropy.value * log_prob - values, batch["weight"])
        return loss, {
            "Actor_Loss": loss,
            "Entropy": -masked_mean(log_prob.detach(), batch["weight"]),
            "Temperature": self.entropy.value,
            "Q_Policy": values.mean(),
        }

    def _validation_info(self, batch: Batch) -> Info:
        """Mean absolute difference between chunks from the mean noise and the data's chunks, in normalized units."""
        noise = self.config.noise.limit * self._policy_actions(batch)
        error = self._chunks_from(batch["obs"], noise).flatten(1) - batch["chunk"]
        return {"Action_Error": error.abs().mean()}

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, batch: Batch, update: Update) -> None:
        """Update critics, critics of the noise, actor, temperature and targets, in this order."""
        update.step("critic", self._critic_loss(batch))
        for _ in range(self.config.critic.noise_updates):
            update.step("noise_critic", self._noise_critic_loss(batch))
        update.step("actor", self._actor_loss(batch))
        if self.entropy.net is not None and update.learns("actor"):
            self._gradient_step("temperature", self.entropy.loss(update.info["Entropy"]))
        if update.learns("critic"):
            self._follow()

    # ---- test time -----------------------------------------------------------------------------------------------

    def _decide(
        self, obs: Batch, goal: Batch | None, explore: bool, generator: torch.Generator | None
    ) -> Tensor:
        share = super()._decide(obs, goal, explore, generator)
        return self._chunks_from(obs, self.config.noise.limit * share)
