"""Real-time chunking: a new chunk that agrees with the actions which are executed while it is computed.

Black, Galliker, Levine, "Real-Time Execution of Action Chunking Flow Policies", 2025 (arXiv:2506.07339). The policy
needs d control steps for a prediction, during which d actions of the old chunk are executed. The new chunk (H actions)
is guided towards what is left of the old one: fully in the first d actions, less and less up to its end, and not at
all where the old chunk has no action:

    W_i = 1 for i < d;  f((E - i) / (E - d + 1)) for d <= i < E;  0 for i >= E            -> prefix_weights
    x1  = x + (1 - t) v(x, t),  the end of the flow as seen from x at time t
    v'  = v + min(beta, c r) J^T [W (prefix - x1)],  J = d x1 / d x,
          c = (1 - t) / t,  r = ((1 - t)^2 + t^2) / (1 - t)^2                               -> guided_velocity

``f`` is the identity (linear) or c (e^c - 1) / (e - 1) (exponential). With ``jacobian="identity"`` J is taken as the
identity, which spares the backward pass through the network; ``"vjp"`` is the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from imitate.errors import ConfigError, nearest
from imitate.functional.diffusion import Sampler, output_of_data, predicted_data

Schedule = Literal["exponential", "linear", "ones", "zeros"]
Jacobian = Literal["identity", "vjp"]
Guidance = Literal["identity", "vjp", "prefix"]
"""How a prediction is made to agree with planned actions: guided, with one of the Jacobians, or, as
:mod:`imitate.functional.prefix` describes, given those that are executed meanwhile."""


def prefix_weights(
    delay: int,
    end: int,
    chunk: int,
    schedule: Schedule = "exponential",
    device: torch.device | str = "cpu",
) -> Tensor:
    """Weights with which each action of a new chunk is guided to the old one: (chunk,) in [0, 1].

    Args:
        delay: d, actions of the old chunk that are executed before the new one begins, 0 to ``end``.
        end: E, actions of the new chunk for which the old one has a plan, up to ``chunk``.
        chunk: H.
        schedule: between ``delay`` and ``end``: ``exponential``, ``linear``, ``ones`` or ``zeros``.
        device: where the result is.

    Raises:
        ConfigError: the schedule is unknown, or not 0 <= delay <= end <= chunk.
    """
    valid = get_args(Schedule)
    if schedule not in valid:
        raise ConfigError(
            f"schedule of the prefix: unknown '{schedule}'; {nearest(schedule, valid)}"
        )
    if not 0 <= delay <= end <= chunk:
        raise ConfigError(
            f"delay {delay}, end {end}, chunk {chunk}: wanted 0 <= delay <= end <= chunk"
        )
    index = torch.arange(chunk, dtype=torch.float32, device=device)
    fade = ((end - index) / (end - delay + 1)).clamp(0.0, 1.0)
    if schedule == "exponential":
        fade = fade * torch.expm1(fade) / math.expm1(1.0)
    elif schedule != "linear":
        fade = torch.full_like(fade, 1.0 if schedule == "ones" else 0.0)
    return torch.where(index < delay, torch.ones_like(fade), torch.where(index < end, fade, 0.0))


def guidance_weight(time: float, beta: float) -> float:
    """min(beta, c r): strength of the guidance at a time in [0, 1), 0 being noise; ``beta`` at 0."""
    if time <= 0.0:
        return beta
    rest = 1.0 - time
    if rest <= 0.0:
        return 0.0
    return min(beta, (rest / time) * (rest * rest + time * time) / (rest * rest))


def guided_velocity(
    velocity: Callable[[Tensor, float], Tensor],
    prefix: Tensor,
    weights: Tensor,
    beta: float = 5.0,
    jacobian: Jacobian = "identity",
) -> Callable[[Tensor, float], Tensor]:
    """The velocity of a flow that ends near ``prefix``, for :func:`imitate.functional.flow.integrate`.

    Args:
        velocity: of the flow, from a point (B, H, A) and its time in [0, 1] to the velocity there.
        prefix: (B, H, A) what is left of the old chunk, shifted so that its first action is the present one; its
            values do not matter where ``weights`` is 0.
        weights: (H,) or (B, H), of :func:`prefix_weights`.
        beta: greatest strength of the guidance.
        jacobian: ``identity`` or ``vjp``, see the module.

    Raises:
        ConfigError: ``jacobian`` is unknown.
    """
    valid = get_args(Jacobian)
    if jacobian not in valid:
        raise ConfigError(f"jacobian: unknown '{jacobian}'; {nearest(jacobian, valid)}")

    def pull(end: Tensor) -> Tensor:
        return weights[..., None] * (prefix - end)

    def identity(x: Tensor, time: float) -> Tensor:
        slope = velocity(x, time)
        return slope + guidance_weight(time, beta) * pull(x + (1.0 - time) * slope)

    def vjp(x: Tensor, time: float) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            point = x.clone().requires_grad_()
            slope = velocity(point, time)
            end = point + (1.0 - time) * slope
            (correction,) = torch.autograd.grad(end, point, pull(end.detach()))
        return slope.detach() + guidance_weight(time, beta) * correction

    return identity if jacobian == "identity" else vjp


def guided_data(
    denoised: Callable[[Tensor, int], Tensor],
    prefix: Tensor,
    weights: Tensor,
    strength: float = 1.0,
    jacobian: Jacobian = "identity",
) -> Callable[[Tensor, int], Tensor]:
    """The same for diffusion: the estimate of the clean chunk, moved towards ``prefix``.

    A diffusion sampler works with the estimate x0(x, k) of the clean chunk at timestep k. Guidance replaces it by
    x0 + strength * J^T [W (prefix - x0)], J = d x0 / d x, or the identity: with identity and strength 1 the guided part
    is W prefix + (1 - W) x0, the usual inpainting made soft.

    Args:
        denoised: from a noisy chunk (B, H, A) and its timestep to the estimate x0 (B, H, A).
        prefix: (B, H, A) as for :func:`guided_velocity`.
        weights: (H,) or (B, H).
        strength: at most 1 for ``identity``.
        jacobian: ``identity`` or ``vjp``.
    """
    valid = get_args(Jacobian)
    if jacobian not in valid:
        raise ConfigError(f"jacobian: unknown '{jacobian}'; {nearest(jacobian, valid)}")

    def identity(x: Tensor, step: int) -> Tensor:
        clean = denoised(x, step)
        return clean + strength * weights[..., None] * (prefix - clean)

    def vjp(x: Tensor, step: int) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            point = x.clone().requires_grad_()
            clean = denoised(point, step)
            pull = weights[..., None] * (prefix - clean.detach())
            (correction,) = torch.autograd.grad(clean, point, pull)
        return clean.detach() + strength * correction

    return identity if jacobian == "identity" else vjp


@dataclass(frozen=True)
class Prefix:
    """Actions towards which a new chunk is guided.

    Attributes:
        actions: (B, H, A) normalized; see :func:`guided_velocity`.
        weights: (H,) of :func:`prefix_weights`.
        jacobian: ``identity`` or ``vjp``.
        beta: greatest strength of a flow's guidance.
    """

    actions: Tensor
    weights: Tensor
    jacobian: Jacobian = "identity"
    beta: float = 5.0

    def velocity(
        self, velocity: Callable[[Tensor, float], Tensor]
    ) -> Callable[[Tensor, float], Tensor]:
        """The guided velocity of a flow."""
        return guided_velocity(velocity, self.actions, self.weights, self.beta, self.jacobian)

    def network(
        self, network: Callable[[Tensor, int], Tensor], sampler: Sampler
    ) -> Callable[[Tensor, int], Tensor]:
        """The network of a diffusion sampler whose outputs stand for the guided estimate of the clean chunk."""
        steps = {step.timestep: step for step in sampler.steps}

        def denoised(noisy: Tensor, timestep: int) -> Tensor:
            step = steps[timestep]
            output = network(noisy, timestep)
            return predicted_data(sampler.prediction, output, noisy, step.alpha, step.sigma)

        guided = guided_data(denoised, self.actions, self.weights, jacobian=self.jacobian)

        def output(noisy: Tensor, timestep: int) -> Tensor:
            step, data = steps[timestep], guided(noisy, timestep)
            return output_of_data(sampler.prediction, data, noisy, step.alpha, step.sigma)

        return output
