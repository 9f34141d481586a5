"""Gaussian diffusion: noise schedules, prediction types, reverse steps.

DDPM: Ho et al. 2020, arXiv:2006.11239. DDIM: Song et al. 2021, arXiv:2010.02502. Cosine schedule: Nichol and
Dhariwal 2021, arXiv:2102.09672. Velocity: Salimans and Ho 2022, arXiv:2202.00512. The numbers equal those of the
schedulers of the library diffusers, with which the published policies were trained.

At step t, counted from 0, ``noisy = alpha * data + sigma * noise`` with
``alpha = sqrt(alphas_cumprod[t])`` and ``sigma = sqrt(1 - alphas_cumprod[t])``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from imitate.errors import ConfigError, nearest

BetaSchedule = Literal["linear", "scaled_linear", "squaredcos_cap_v2"]
Prediction = Literal["epsilon", "sample", "v_prediction"]
SamplerName = Literal["ddpm", "ddim"]


@dataclass(frozen=True)
class NoiseSchedule:
    """Noise level of each step. Build it with :func:`noise_schedule`.

    Attributes:
        betas: (S,) variance of the noise that each step adds, float32.
        alphas_cumprod: (S,) remaining fraction of the data's variance, float32.
    """

    betas: Tensor
    alphas_cumprod: Tensor

    @property
    def num_steps(self) -> int:
        """Number of steps from data to noise."""
        return len(self.betas)

    def to(self, device: torch.device | str) -> NoiseSchedule:
        """Return the same schedule on a device, for training there."""
        return NoiseSchedule(self.betas.to(device), self.alphas_cumprod.to(device))

    def alpha_sigma(self, step: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors of data and noise at the steps (B,), shaped to broadcast against ``like`` (B, ...)."""
        left = self.alphas_cumprod[step].to(like.dtype).view(-1, *[1] * (like.dim() - 1))
        return left.sqrt(), (1.0 - left).sqrt()

    def add_noise(self, data: Tensor, noise: Tensor, step: Tensor) -> Tensor:
        """Return noisy data at the steps (B,); ``data`` and ``noise`` are (B, ...)."""
        alpha, sigma = self.alpha_sigma(step, data)
        return alpha * data + sigma * noise

    def velocity(self, data: Tensor, noise: Tensor, step: Tensor) -> Tensor:
        """Return the velocity ``alpha * noise - sigma * data``, the target of ``v_prediction`` at the steps (B,)."""
        alpha, sigma = self.alpha_sigma(step, data)
        return alpha * noise - sigma * data

    def target(self, prediction: Prediction, data: Tensor, noise: Tensor, step: Tensor) -> Tensor:
        """Return the regression target of the network for noisy data at the steps (B,)."""
        _check_name("prediction_type", prediction, get_args(Prediction))
        if prediction == "epsilon":
            return noise
        return data if prediction == "sample" else self.velocity(data, noise, step)


def noise_schedule(
    name: BetaSchedule,
    num_steps: int,
    *,
    beta_start: float = 0.0001,
    beta_end: float = 0.02,
    max_beta: float = 0.999,
) -> NoiseSchedule:
    """Build a noise schedule by its name.

    Args:
        name: ``linear`` (beta grows linearly), ``scaled_linear`` (sqrt(beta) grows linearly), or ``squaredcos_cap_v2``
            (``alphas_cumprod`` falls as a squared cosine).
        num_steps: number of steps from data to noise.
        beta_start: first beta of the linear schedules.
        beta_end: last beta of the linear schedules.
        max_beta: upper limit of beta in the cosine schedule.
    """
    _check_name("beta_schedule", name, get_args(BetaSchedule))
    if num_steps < 1:
        raise ConfigError(f"num_train_timesteps is {num_steps}; expected at least 1")
    if name == "linear":
        betas = torch.linspace(beta_start, beta_end, num_steps, dtype=torch.float32)
    elif name == "scaled_linear":
        roots = torch.linspace(beta_start**0.5, beta_end**0.5, num_steps, dtype=torch.float32)
        betas = roots.square()
    else:
        left = [
            math.cos((i / num_steps + 0.008) / 1.008 * math.pi / 2) ** 2
            for i in range(num_steps + 1)
        ]
        capped = [min(1.0 - left[i + 1] / left[i], max_beta) for i in range(num_steps)]
        betas = torch.tensor(capped, dtype=torch.float32)
    return NoiseSchedule(betas, torch.cumprod(1.0 - betas, dim=0))


def predicted_data(
    prediction: Prediction,
    output: Tensor,
    noisy: Tensor,
    alpha: Tensor | float,
    sigma: Tensor | float,
) -> Tensor:
    """Convert a network's output at a step to the clean data that it predicts."""
    if prediction == "epsilon":
        return (noisy - sigma * output) / alpha
    return output if prediction == "sample" else alpha * noisy - sigma * output


def predicted_noise(
    prediction: Prediction,
    output: Tensor,
    noisy: Tensor,
    alpha: Tensor | float,
    sigma: Tensor | float,
) -> Tensor:
    """Convert a network's output at a step to the noise that it predicts."""
    if prediction == "epsilon":
        return output
    return (
        (noisy - alpha * output) / sigma
        if prediction == "sample"
        else alpha * output + sigma * noisy
    )


def output_of_data(
    prediction: Prediction,
    data: Tensor,
    noisy: Tensor,
    alpha: Tensor | float,
    sigma: Tensor | float,
) -> Tensor:
    """Return the network output from which :func:`predicted_data` would compute the given clean data: its inverse."""
    if prediction == "sample":
        return data
    noise = (noisy - alpha * data) / sigma
    return noise if prediction == "epsilon" else alpha * noise - sigma * data


@dataclass(frozen=True)
class ReverseStep:
    """One step towards the data. All coefficients are Python numbers, so that no step waits for a copy from the GPU.

    The result is ``data_factor * data + noisy_factor * noisy + noise_factor * noise + std * fresh noise``. ``data`` is
    the predicted data, clipped if the sampler clips, and ``noise`` the predicted noise.
    """

    timestep: int
    alpha: float
    sigma: float
    data_factor: float
    noisy_factor: float
    noise_factor: float
    std: float


@dataclass(frozen=True)
class Sampler:
    """Reverse steps in order of execution. Build it with :func:`make_sampler`."""

    steps: tuple[ReverseStep, ...]
    prediction: Prediction
    clip: float | None

    @property
    def timesteps(self) -> tuple[int, ...]:
        """Timesteps (S,) that are given to the network, one per reverse step."""
        return tuple(step.timestep for step in self.steps)

    def step(
        self,
        step: ReverseStep,
        noisy: Tensor,
        output: Tensor,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Denoise by one step, given the noisy data and the network's output, (B, ...) each."""
        data = predicted_data(self.prediction, output, noisy, step.alpha, step.sigma)
        if self.clip is not None:
            data = data.clamp(-self.clip, self.clip)
        result = data * step.data_factor
        if step.noisy_factor:
            result = result + noisy * step.noisy_factor
        if step.noise_factor:
            noise = predicted_noise(self.prediction, output, noisy, step.alpha, step.sigma)
            result = result + noise * step.noise_factor
        if step.std:
            fresh = torch.empty_like(result).normal_(generator=generator)
            result = result + fresh * step.std
        return result

    def sample(
        self,
        network: Callable[[Tensor, int], Tensor],
        noise: Tensor,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Denoise noise to data by all reverse steps.

        Args:
            network: function of noisy data (B, ...) and a timestep that returns the prediction.
            noise: (B, ...) standard normal noise to start from.
            generator: source of the noise in DDPM's steps.
        """
        x = noise
        for step in self.steps:
            x = self.step(step, x, network(x, step.timestep), generator)
        return x


def make_sampler(
    name: SamplerName,
    schedule: NoiseSchedule,
    num_steps: int,
    *,
    prediction: Prediction = "epsilon",
    clip: float | None = 1.0,
    steps_offset: int = 0,
    set_alpha_to_one: bool = True,
) -> Sampler:
    """Build the reverse process: ``ddpm`` (with the posterior's variance) or ``ddim`` (eta 0, no fresh noise).

    Args:
        name: ``ddpm`` or ``ddim``.
        schedule: noise schedule of the training.
        num_steps: number of denoising steps at inference, at evenly spaced timesteps from ``steps_offset`` upwards.
        prediction: meaning of the network's output.
        clip: limit of the predicted data's magnitude; None: no clipping.
        steps_offset: last timestep of the process; timestep 0 has the least noise.
        set_alpha_to_one: true: DDIM's last step ends at pure data; false: at the noise level of step 0.
    """
    _check_name("sampler", name, get_args(SamplerName))
    _check_name("prediction_type", prediction, get_args(Prediction))
    total = schedule.num_steps
    if not 1 <= num_steps <= total:
        raise ConfigError(
            f"num_inference_timesteps is {num_steps}; wanted 1 to num_train_timesteps, {total}"
        )
    stride = total // num_steps
    timesteps = [i * stride + steps_offset for i in reversed(range(num_steps))]
    largest = total - 1 - (num_steps - 1) * stride
    if not 0 <= steps_offset <= largest:
        raise ConfigError(
            f"steps_offset is {steps_offset}; wanted 0 to {largest} with {num_steps} of {total} timesteps"
        )
    left = schedule.alphas_cumprod.cpu()
    one = left.new_ones(())
    steps = []
    for i, timestep in enumerate(timesteps):
        if name == "ddpm":
            previous = left[timesteps[i + 1]] if i + 1 < num_steps else one
            steps.append(_ddpm_step(timestep, left[timestep], previous))
        else:
            end = one if set_alpha_to_one else left[0]
            previous = left[timestep - stride] if timestep >= stride else end
            steps.append(_ddim_step(timestep, left[timestep], previous))
    return Sampler(tuple(steps), prediction, clip)


def _ddpm_step(timestep: int, left: Tensor, previous: Tensor) -> ReverseStep:
    """Return the step with the posterior's mean and variance (equations 6 and 7 of the DDPM paper).

    ``left`` and ``previous`` are the values of ``alphas_cumprod`` before and after the step.
    """
    alpha_now = left / previous
    beta_now = 1.0 - alpha_now
    variance = ((1.0 - previous) / (1.0 - left) * beta_now).clamp(min=1e-20)
    return ReverseStep(
        timestep=timestep,
        alpha=left.sqrt().item(),
        sigma=(1.0 - left).sqrt().item(),
        data_factor=(previous.sqrt() * beta_now / (1.0 - left)).item(),
        noisy_factor=(alpha_now.sqrt() * (1.0 - previous) / (1.0 - left)).item(),
        noise_factor=0.0,
        std=variance.sqrt().item() if timestep > 0 else 0.0,
    )


def _ddim_step(timestep: int, left: Tensor, previous: Tensor) -> ReverseStep:
    """Return the deterministic step (equation 12 of the DDIM paper with sigma 0). Arguments as in ``_ddpm_step``."""
    return ReverseStep(
        timestep=timestep,
        alpha=left.sqrt().item(),
        sigma=(1.0 - left).sqrt().item(),
        data_factor=previous.sqrt().item(),
        noisy_factor=0.0,
        noise_factor=(1.0 - previous).sqrt().item(),
        std=0.0,
    )


def _check_name(key: str, name: str, valid: tuple[str, ...]) -> None:
    """Raise ConfigError unless ``name`` is one of the ``valid`` values of an option."""
    if name not in valid:
        raise ConfigError(f"{key}: unknown '{name}'; {nearest(name, valid)}")
