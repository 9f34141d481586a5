"""Flow policy: action chunks by flow matching.

Lipman et al., "Flow Matching for Generative Modeling", ICLR 2023 (arXiv:2210.02747), on the windows, networks and
execution of Chi et al., "Diffusion Policy", RSS 2023 (arXiv:2303.04137). With a = the demonstrated chunk, s = the
last observations, z ~ N(0, I), t = a random time in [0, 1]:

    x_t = (1 - t) z + t a                                                    -> straight_path
    loss = | v(x_t, t, s) - (a - z) |^2, padded steps left out               -> FlowPolicy._loss
    acting: dx/dt = v(x, t, s) from x_0 = z to the chunk x_1, few steps      -> FlowPolicy._predict

The default network is an MLP over the flattened chunk, which a CPU can train in a minute and evaluate in a millisecond.
"""

from __future__ import annotations

from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.chunk_policy import ChunkPolicy
from imitate.algo.base.denoising import DenoisingConfig, DenoisingMLPConfig
from imitate.algo.base.factory import register
from imitate.algo.base.weights import step_weight
from imitate.config import Section
from imitate.functional.flow import Integrator, TimeDensity, draw_times, integrate, straight_path
from imitate.functional.losses import masked_mean
from imitate.functional.prefix import Given, draw_given
from imitate.functional.realtime import Prefix
from imitate.models.denoiser import Denoiser, gaussian_noise

TIME_SCALE = 100.0
"""Factor from times in [0, 1] to the network's time input, which is scaled like a diffusion of 100 steps."""


class FlowConfig(Section):
    """Flow matching."""

    time_density: TimeDensity = Field("uniform", description="distribution of training times")
    num_inference_steps: int = Field(4, ge=1, description="number of steps from noise to actions")
    integrator: Integrator = Field("euler", description="heun evaluates the network twice per step")


class FlowPolicyConfig(DenoisingConfig):
    """Section ``algo`` of algorithm ``flow_policy``; one network is enabled."""

    flow: FlowConfig = Field(FlowConfig())
    mlp: DenoisingMLPConfig = Field(DenoisingMLPConfig(enabled=True))


@register("flow_policy", FlowPolicyConfig)
class FlowPolicy(ChunkPolicy[FlowPolicyConfig]):
    """Policy that predicts action chunks by flow matching."""

    chunk_key = "horizon"
    aligned_with_oldest_frame = True

    @property
    def policy(self) -> Denoiser:
        """The network that learns and acts."""
        return cast(Denoiser, self.active_nets["policy"])

    @property
    def max_prefix(self) -> int:
        """Largest number of planned actions that a prediction can be given."""
        return self.config.prefix.max_delay

    def _create_networks(self) -> None:
        policy = self.config.make_denoiser(
            self._create_encoder, self.ac_dim, self.prediction_horizon, self.frame_stack
        )
        self.nets = nn.ModuleDict({"policy": policy})

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        actions = batch["actions"]
        noise = torch.randn_like(actions)
        density = self.config.flow.time_density
        time = draw_times(len(actions), density, device=actions.device)
        noisy, velocity = straight_path(noise, actions, time)
        given = draw_given(actions, self._first_action, self.config.prefix.max_delay)
        with self.autocast():
            condition = self.policy.condition(batch["obs"], batch["goal_obs"])
            predicted = self.policy(noisy, time * TIME_SCALE, condition, given)
        error = (predicted.float() - velocity).square().mean(-1)
        weight = step_weight(batch)
        loss = masked_mean(error, weight if given is None else given.rest(weight))
        return loss, {"Loss": loss}

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
        policy, config = self.policy, self.config.flow
        condition = policy.condition(obs, goal)
        shape = (len(condition), self.prediction_horizon, self.ac_dim)
        noise = gaussian_noise(shape, condition, generator)

        length = 1.0 / config.num_inference_steps
        times = [k * length for k in range(config.num_inference_steps + 1)]
        network = policy.for_steps([TIME_SCALE * time for time in times], condition, given)

        def velocity(x: Tensor, time: float) -> Tensor:
            return network(x, TIME_SCALE * time)

        chunk = integrate(
            velocity if prefix is None else prefix.velocity(velocity),
            noise,
            config.num_inference_steps,
            config.integrator,
        )
        return chunk if given is None else given.fill(chunk)
