"""Flow policy: action chunks by flow matching.

Lipman et al., "Flow Matching for Generative Modeling", ICLR 2023 (arXiv:2210.02747), on the windows, networks and
execution of Chi et al., "Diffusion Policy", RSS 2023 (arXiv:2303.04137). With a = the demonstrated chunk, s = the
last observations, z ~ N(0, I), t = a random time in [0, 1]:

    x_t = (1 - t) z + t a                                                    -> straight_path
    loss = | v(x_t, t, s) - (a - z) |^2, padded steps left out               -> FlowPolicy._loss
    acting: dx/dt = v(x, t, s) from x_0 = z to the chunk x_1, few steps      -> FlowPolicy._predict

The default network is an MLP over the flattened chunk, which a CPU can train in a minute and evaluate in a millisecond.

The lines from noise (time 0) to data (time 1) are straight, as in rectified flow (Liu et al. 2023, arXiv:2209.03003).
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, cast, get_args

import torch
from pydantic import Field
from torch import Tensor, nn

from imitate.algo.base.algo import Batch, Info
from imitate.algo.base.chunk_policy import ChunkPolicy, DenoisingStep
from imitate.algo.base.denoising import DenoisingConfig, DenoisingMLPConfig
from imitate.algo.base.factory import register
from imitate.algo.slots.advantage import guided, without_condition
from imitate.config import Section
from imitate.errors import ConfigError, nearest
from imitate.functional.losses import masked_mean, step_weight
from imitate.functional.realtime import Given, Prefix, draw_given
from imitate.models.denoiser import Denoiser, gaussian_noise

TimeDensity = Literal["uniform", "beta", "logit_normal"]
Integrator = Literal["euler", "heun"]


def straight_path(noise: Tensor, data: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Return a point between noise and data, and the velocity there, which the network has to predict.

    Args:
        noise: (B, ...).
        data: (B, ...).
        time: (B,) in [0, 1].

    Returns:
        ``(1 - time) * noise + time * data`` and ``data - noise``, (B, ...) each.
    """
    velocity = data - noise
    return noise + time.view(-1, *[1] * (data.dim() - 1)) * velocity, velocity


def draw_times(
    batch_size: int,
    density: TimeDensity = "uniform",
    *,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
    beta: float = 1.5,
    max_time: float = 0.999,
    mean: float = 0.0,
    std: float = 1.0,
) -> Tensor:
    """Draw training times (B,) in [0, 1].

    Args:
        batch_size: B.
        density: ``uniform``; ``beta``, with more times near the noise (Black et al. 2024, arXiv:2410.24164: time =
            max_time * (1 - z), z of Beta(beta, 1)); or ``logit_normal``, with more times in the middle (Esser et al.
            2024, arXiv:2403.03206).
        device: device of the result.
        generator: source of randomness; None: torch's default generator.
        beta: parameter of ``beta``; 1 is uniform.
        max_time: largest time of ``beta``.
        mean: mean of the logit of ``logit_normal``; a positive mean moves the times towards the data.
        std: standard deviation of the logit.
    """
    valid = get_args(TimeDensity)
    if density not in valid:
        raise ConfigError(f"time density: unknown '{density}'; {nearest(density, valid)}")
    if density == "logit_normal":
        logit = torch.randn(batch_size, device=device, generator=generator) * std + mean
        return logit.sigmoid()
    uniform = torch.rand(batch_size, device=device, generator=generator)
    if density == "uniform":
        return uniform
    # The distribution function of Beta(b, 1) is z^b, so z = u^(1/b).
    return max_time * (1.0 - uniform.pow(1.0 / beta))


def integrate(
    velocity: Callable[[Tensor, float], Tensor],
    noise: Tensor,
    num_steps: int,
    method: Integrator = "euler",
) -> Tensor:
    """Follow the flow from noise at time 0 to data at time 1.

    Args:
        velocity: function of a point (B, ...) and its time that returns the velocity there.
        noise: (B, ...).
        num_steps: number of equal steps; Heun's method evaluates the velocity twice per step.
        method: ``euler`` (first order) or ``heun`` (second order).
    """
    valid = get_args(Integrator)
    if method not in valid:
        raise ConfigError(f"flow integrator: unknown '{method}'; {nearest(method, valid)}")
    if num_steps < 1:
        raise ConfigError(
            f"number of flow steps (algo.flow.num_inference_steps) is {num_steps}; wanted at least 1"
        )
    x = noise
    for k in range(num_steps):
        x = flow_step(velocity, x, k, num_steps, method)
    return x


def flow_step(
    velocity: Callable[[Tensor, float], Tensor],
    x: Tensor,
    k: int,
    num_steps: int,
    method: Integrator = "euler",
) -> Tensor:
    """Make step k, counted from 0, of :func:`integrate`: return the points to which it moves points ``x`` (B, ...)."""
    length = 1.0 / num_steps
    slope = velocity(x, k * length)
    if method == "heun":
        end = velocity(x + length * slope, (k + 1) * length)
        slope = 0.5 * (slope + end)
    return x + length * slope


TIME_SCALE = 100.0
"""Factor that converts times in [0, 1] to the network's time input, which has the range of 100 diffusion steps."""


class FlowConfig(Section):
    """Options of flow matching: training times and integration of the flow."""

    time_density: TimeDensity = Field(
        "uniform", description="distribution of the times at which the flow is learned"
    )
    num_inference_steps: int = Field(4, ge=1, description="number of steps from noise to actions")
    integrator: Integrator = Field(
        "euler",
        description="method of integration: euler, or heun, which is more exact but evaluates the network twice per "
        "step",
    )


class FlowPolicyConfig(DenoisingConfig):
    """Options of algorithm ``flow_policy``, under ``algo``; enable exactly one network."""

    flow: FlowConfig = Field(FlowConfig())
    mlp: DenoisingMLPConfig = Field(DenoisingMLPConfig(enabled=True))


@register("flow_policy", FlowPolicyConfig)
class FlowPolicy(ChunkPolicy[FlowPolicyConfig]):
    """Policy that predicts action chunks by flow matching."""

    chunk_key = "horizon"
    aligned_with_oldest_frame = True
    recordable = True

    @property
    def policy(self) -> Denoiser:
        """The network that learns and acts."""
        return cast(Denoiser, self.active_nets["policy"])

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
        condition = self.policy.condition(obs, goal)
        shape = (len(condition), self.prediction_horizon, self.ac_dim)
        noise, config = gaussian_noise(shape, condition, generator), self.config.flow
        velocity = self._guided_velocity(obs, goal, condition, given)
        field = velocity if prefix is None else prefix.velocity(velocity)
        chunk = integrate(field, noise, config.num_inference_steps, config.integrator)
        return chunk if given is None else given.fill(chunk)

    @property
    def num_denoising_steps(self) -> int:
        """Number of steps from noise to a prediction."""
        return self.config.flow.num_inference_steps

    def denoising_steps(self, obs: Batch, goal: Batch | None) -> list[DenoisingStep]:
        """Return the integration steps of the flow, conditioned on the observations."""
        config, condition = self.config.flow, self.policy.condition(obs, goal)
        velocity = self._guided_velocity(obs, goal, condition)
        number, method = config.num_inference_steps, config.integrator

        def step(k: int, noisy: Tensor) -> Tensor:
            return flow_step(velocity, noisy, k, number, method)

        return [partial(step, k) for k in range(number)]

    def _guided_velocity(
        self, obs: Batch, goal: Batch | None, condition: Tensor, given: Given | None = None
    ) -> Callable[[Tensor, float], Tensor]:
        """Return the velocity field, guided by ``algo.advantage.guidance`` towards actions that are good."""
        velocity, slot = self._velocity(condition, given), self.config.advantage
        if not slot.enabled or slot.guidance == 1.0:
            return velocity
        unknown = self.policy.condition(without_condition(obs, self.obs_shapes), goal)
        free = self._velocity(unknown, given)
        return lambda noisy, time: guided(free(noisy, time), velocity(noisy, time), slot.guidance)

    def _velocity(
        self, condition: Tensor, given: Given | None = None
    ) -> Callable[[Tensor, float], Tensor]:
        """Return the velocity field, a function of noisy chunks and a time.

        The network's conditioning for all times of the integration is computed here, once.
        """
        number = self.config.flow.num_inference_steps
        times = [TIME_SCALE * (k * (1.0 / number)) for k in range(number + 1)]
        network = self.policy.for_steps(times, condition, given)
        return lambda noisy, time: network(noisy, TIME_SCALE * time)
