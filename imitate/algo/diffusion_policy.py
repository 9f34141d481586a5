"""Diffusion policy: action chunks by denoising.

Chi et al., "Diffusion Policy: Visuomotor Policy Learning via Action Diffusion", RSS 2023 (arXiv:2303.04137). With
a = the demonstrated chunk, s = the last observations, k = a random step of the noise schedule, z ~ N(0, I):

    x_k = sqrt(abar_k) a + sqrt(1 - abar_k) z                                -> NoiseSchedule.add_noise
    loss = | eps(x_k, k, s) - z |^2, padded steps left out                   -> DiffusionPolicy._loss
    acting: from noise to the chunk by the steps of DDPM or DDIM             -> DiffusionPolicy._predict

With ``prediction_type`` the network predicts the chunk (``sample``) or the velocity (``v_prediction``) instead of the
noise. The policy acts with averaged weights. Actions must be in [-1, 1], because the predicted chunk is clipped
(``clip_sample``): normalize other actions with ``min_max``.

Departures from robomimic: ``prediction_type`` changes the training target too, not only the sampling; the options
``algo.unet.*`` take effect; padded steps are left out of the loss; the policy can act on a batch of observations.
"""

from functools import cached_property, partial
from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.chunk_policy import ChunkPolicy, DenoisingStep
from imitate.algo.base.denoising import DenoisingConfig, UNetConfig
from imitate.algo.base.factory import register
from imitate.config import BaseConfig, Section
from imitate.config.optimizer import Networks, adamw, networks
from imitate.functional.diffusion import (
    BetaSchedule,
    NoiseSchedule,
    Prediction,
    ReverseStep,
    Sampler,
    make_sampler,
    noise_schedule,
)
from imitate.functional.losses import masked_mean, step_weight
from imitate.functional.realtime import Given, Prefix, draw_given
from imitate.models.denoiser import Denoiser, gaussian_noise


class SamplerConfig(Section):
    """Noise schedule and sampling steps."""

    enabled: bool = Field(
        False, description="act with this sampler; exactly one of ddpm and ddim must be enabled"
    )
    num_train_timesteps: int = Field(
        100, ge=1, description="number of steps of the noise schedule, from data to noise"
    )
    num_inference_timesteps: int = Field(100, ge=1, description="number of sampling steps")
    beta_schedule: BetaSchedule = Field("squaredcos_cap_v2", description="noise schedule")
    beta_start: float = Field(
        0.0001, gt=0, lt=1, description="first variance of linear and scaled_linear schedules"
    )
    beta_end: float = Field(
        0.02, gt=0, lt=1, description="last variance of linear and scaled_linear schedules"
    )
    clip_sample: bool = Field(True, description="clip the predicted chunk at each step")
    clip_sample_range: float = Field(
        1.0, gt=0, description="largest magnitude to which numbers of the chunk are clipped"
    )
    prediction_type: Prediction = Field(
        "epsilon", description="quantity that the network predicts: noise, chunk or velocity"
    )


class DDIMConfig(SamplerConfig):
    """Deterministic sampler with fewer steps (Song et al., ICLR 2021, arXiv:2010.02502)."""

    num_inference_timesteps: int = Field(10, ge=1, description="number of sampling steps")
    set_alpha_to_one: bool = Field(
        True,
        description="the last sampling step ends at data without noise (alpha_bar 1); false: at the noise level of "
        "step 0",
    )
    steps_offset: int = Field(
        0, ge=0, description="last timestep of the sampling; 0 is the timestep with the least noise"
    )


class DiffusionPolicyConfig(DenoisingConfig):
    """Options of algorithm ``diffusion_policy``, under ``algo``; enable exactly one network and one sampler."""

    optim_params: Networks = networks(
        policy=adamw(1e-4, 1e-6, step_every_batch=True, scheduler_type="cosine", warmup_steps=500)
    )
    unet: UNetConfig = Field(UNetConfig(enabled=True))
    ddpm: SamplerConfig = Field(SamplerConfig(enabled=True))
    ddim: DDIMConfig = Field(DDIMConfig())

    @property
    def sampler(self) -> SamplerConfig:
        """Options of the sampler that is enabled, ``ddpm`` or ``ddim``."""
        return self.ddim if self.ddim.enabled else self.ddpm

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings with which the policy cannot be trained or cannot act."""
        problems = super().conflicts(config)
        if self.ddpm.enabled == self.ddim.enabled:
            problems.append(
                f"algo.ddpm.enabled and algo.ddim.enabled are both {str(self.ddpm.enabled).lower()}: enable one of them"
            )
        if self.sampler.num_inference_timesteps > self.sampler.num_train_timesteps:
            problems.append(
                f"num_inference_timesteps is {self.sampler.num_inference_timesteps}, more than num_train_timesteps "
                f"{self.sampler.num_train_timesteps}: lower it"
            )
        return problems


@register("diffusion_policy", DiffusionPolicyConfig)
class DiffusionPolicy(ChunkPolicy[DiffusionPolicyConfig]):
    """Policy that predicts action chunks by denoising."""

    chunk_key = "horizon"
    aligned_with_oldest_frame = True
    recordable = True

    @property
    def policy(self) -> Denoiser:
        """The network that learns and acts."""
        return cast(Denoiser, self.active_nets["policy"])

    @cached_property
    def schedule(self) -> NoiseSchedule:
        """Noise schedule with which the network is trained."""
        config = self.config.sampler
        with self.schedules.unread():
            schedule = noise_schedule(
                config.beta_schedule,
                config.num_train_timesteps,
                beta_start=config.beta_start,
                beta_end=config.beta_end,
            )
        return schedule.to(self.device)

    @cached_property
    def sampler(self) -> Sampler:
        """The sampler with which the policy acts."""
        return self._make_sampler(self.config.sampler)

    @cached_property
    def deterministic_sampler(self) -> Sampler:
        """Sampler without random numbers (DDIM), also for a policy that acts with DDPM."""
        config = self.config
        if config.ddim.enabled:
            return self.sampler
        fewest = min(x.num_inference_timesteps for x in (config.ddim, config.ddpm))
        return self._make_sampler(
            DDIMConfig.model_validate({**config.ddpm.to_dict(), "num_inference_timesteps": fewest})
        )

    def _make_sampler(self, config: SamplerConfig) -> Sampler:
        with self.schedules.unread():
            return self._sampler_of(config)

    def _sampler_of(self, config: SamplerConfig) -> Sampler:
        ddim = config if isinstance(config, DDIMConfig) else None
        return make_sampler(
            "ddim" if ddim else "ddpm",
            self.schedule,
            config.num_inference_timesteps,
            prediction=config.prediction_type,
            clip=config.clip_sample_range if config.clip_sample else None,
            steps_offset=ddim.steps_offset if ddim else 0,
            set_alpha_to_one=ddim.set_alpha_to_one if ddim else True,
        )

    @property
    def max_prefix(self) -> int:
        """Largest number of planned actions that a prediction can take as input."""
        return self.config.prefix.max_delay

    def _create_networks(self) -> None:
        policy = self.config.make_denoiser(
            self._create_encoder, self.ac_dim, self.prediction_horizon, self.frame_stack
        )
        self.nets = nn.ModuleDict({"policy": policy})

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        actions = batch["actions"]
        noise = torch.randn_like(actions)
        step = torch.randint(self.schedule.num_steps, (len(actions),), device=actions.device)
        noisy = self.schedule.add_noise(actions, noise, step)
        given = draw_given(actions, self._first_action, self.config.prefix.max_delay)
        with self.autocast():
            condition = self.policy.condition(batch["obs"], batch["goal_obs"])
            predicted = self.policy(noisy, step, condition, given)
        prediction = self.config.sampler.prediction_type
        target = self.schedule.target(prediction, actions, noise, step)
        error = (predicted.float() - target).square().mean(-1)
        weight = step_weight(batch)
        loss = masked_mean(error, weight if given is None else given.rest(weight))
        return loss, {"Loss": loss, "L2_Loss": loss}

    def _predict(self, obs: Batch, goal: Batch | None, generator: torch.Generator | None) -> Tensor:
        return self._predict_guided(obs, goal, generator, None)

    def _predict_guided(
        self,
        obs: Batch,
        goal: Batch | None,
        generator: torch.Generator | None,
        prefix: Prefix | None,
        given: Given | None = None,
    ) -> Tensor:
        policy = self.policy
        condition = policy.condition(obs, goal)
        shape = (len(condition), self.prediction_horizon, self.ac_dim)
        noise = gaussian_noise(shape, condition, generator)

        network = policy.for_steps(self.sampler.timesteps, condition, given)
        guided = network if prefix is None else prefix.network(network, self.sampler)
        chunk = self.sampler.sample(guided, noise, generator)
        return chunk if given is None else given.fill(chunk)

    @property
    def num_denoising_steps(self) -> int:
        """Number of steps from noise to a prediction."""
        return len(self.deterministic_sampler.steps)

    def denoising_steps(self, obs: Batch, goal: Batch | None) -> list[DenoisingStep]:
        """Return the deterministic steps of DDIM, conditioned on the observations."""
        sampler, condition = self.deterministic_sampler, self.policy.condition(obs, goal)
        network = self.policy.for_steps(sampler.timesteps, condition)

        def denoise(step: ReverseStep, noisy: Tensor) -> Tensor:
            return sampler.step(step, noisy, network(noisy, step.timestep))

        return [partial(denoise, step) for step in sampler.steps]
