"""Flow matching along straight lines from noise (time 0) to data (time 1).

Lipman et al. 2023, arXiv:2210.02747; Liu et al. 2023 (rectified flow), arXiv:2209.03003.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from imitate.errors import ConfigError, nearest

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
        raise ConfigError(f"flow steps: got {num_steps}; wanted at least 1")
    x = noise
    length = 1.0 / num_steps
    for k in range(num_steps):
        slope = velocity(x, k * length)
        if method == "heun":
            end = velocity(x + length * slope, (k + 1) * length)
            slope = 0.5 * (slope + end)
        x = x + length * slope
    return x
