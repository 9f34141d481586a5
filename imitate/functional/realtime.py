"""Real-time chunking, at inference and in training: a new chunk continues the actions executed while it is predicted.

Black, Galliker, Levine, "Real-Time Execution of Action Chunking Flow Policies", 2025 (arXiv:2506.07339). The policy
needs d control steps for a prediction, during which d actions of the old chunk are executed. The new chunk (H actions)
is guided towards the remaining actions of the old chunk: fully in the first d actions, less and less up to its end, and
not at all after the old chunk's last action:

    W_i = 1 for i < d;  f((E - i) / (E - d + 1)) for d <= i < E;  0 for i >= E            -> prefix_weights
    x1  = x + (1 - t) v(x, t),  the end of the flow as seen from x at time t
    v'  = v + min(beta, c r) J^T [W (prefix - x1)],  J = d x1 / d x,
          c = (1 - t) / t,  r = ((1 - t)^2 + t^2) / (1 - t)^2                               -> guided_velocity

``f`` is the identity (linear) or c (e^c - 1) / (e - 1) (exponential). With ``jacobian="identity"`` J is replaced by the
identity, which saves the backward pass through the network; ``"vjp"`` is the paper's method.

In training-time real-time chunking the policy is given the first actions of its chunk as an input:
Black, Ren, Equi, Levine, "Training-Time Action Conditioning for Efficient Real-Time Chunking", 2025
(arXiv:2512.05964). A prediction that takes d control steps has to continue the d actions that are executed meanwhile.
In training the given actions are those of the demonstration, for a random delay d per sample; a is the demonstrated
chunk and x_t a noisy one:

    d uniform in 0 .. D                                                      -> draw_given
    input_i = a_i, without noise, for i < d;  x_t,i for the others           -> Given.fill
    loss = sum of the errors at i >= d / number of the actions at i >= d     -> Given.rest
    acting: the planned actions in place of the a_i, in every step from noise to actions

In the paper each action has its own time: the time of clean data for i < d, and t for all other actions. The networks
here have one time, and one more input per action that marks given actions, which is the same information. Chunks may
begin before the newest observation, so i counts from the present action; past actions are not given.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from imitate.errors import ConfigError, nearest
from imitate.functional.diffusion import Sampler, output_of_data, predicted_data

Schedule = Literal["exponential", "linear", "ones", "zeros"]
Jacobian = Literal["identity", "vjp"]
Guidance = Literal["identity", "vjp", "prefix"]
"""Way in which a new chunk is joined to planned actions: by guidance with one of two Jacobians, or by giving the policy
the actions that are executed meanwhile.
"""


def prefix_weights(
    delay: int,
    end: int,
    chunk: int,
    schedule: Schedule = "exponential",
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return the weights (chunk,) in [0, 1] with which the actions of a new chunk are guided towards the old chunk.

    Args:
        delay: d, number of actions of the old chunk that are executed before the new chunk begins, 0 to ``end``.
        end: E, number of actions of the new chunk for which the old chunk has planned actions too, up to ``chunk``.
        chunk: H, number of actions in a chunk.
        schedule: shape of the weights between ``delay`` and ``end``: ``exponential``, ``linear``, ``ones`` or
            ``zeros``.
        device: device of the result.

    Raises:
        ConfigError: the schedule is unknown, or 0 <= delay <= end <= chunk does not hold.
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
    """Strength of the guidance, min(beta, c r), at a time in [0, 1), where 0 is noise; it is ``beta`` at 0."""
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
    """Return the velocity of a flow that ends near ``prefix``, for :func:`imitate.algo.flow_policy.integrate`.

    Args:
        velocity: velocity of the unguided flow: a function of a point (B, H, A) and its time in [0, 1].
        prefix: (B, H, A) remaining actions of the old chunk, shifted so that the first action is the present action;
            its values do not matter where ``weights`` is 0.
        weights: (H,) or (B, H), from :func:`prefix_weights`.
        beta: largest strength of the guidance.
        jacobian: ``identity`` or ``vjp``, as described in :mod:`imitate.functional.realtime`.

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
    """Return a function like ``denoised`` whose estimates of the clean chunk are moved towards ``prefix``.

    A diffusion sampler works with the estimate x0(x, k) of the clean chunk at timestep k. Guidance replaces it by
    x0 + strength * J^T [W (prefix - x0)] with J = d x0 / d x, or the identity as J. With the identity and strength 1
    the estimate is W prefix + (1 - W) x0, a soft form of the usual inpainting.

    Args:
        denoised: function of a noisy chunk (B, H, A) and its timestep that returns the estimate x0 (B, H, A).
        prefix: (B, H, A) remaining actions of the old chunk, as in :func:`guided_velocity`.
        weights: (H,) or (B, H).
        strength: strength of the guidance, at most 1 for ``identity``.
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
        weights: (H,) from :func:`prefix_weights`.
        jacobian: ``identity`` or ``vjp``.
        beta: largest strength of a flow's guidance.
    """

    actions: Tensor
    weights: Tensor
    jacobian: Jacobian = "identity"
    beta: float = 5.0

    def velocity(
        self, velocity: Callable[[Tensor, float], Tensor]
    ) -> Callable[[Tensor, float], Tensor]:
        """Return the guided velocity of a flow."""
        return guided_velocity(velocity, self.actions, self.weights, self.beta, self.jacobian)

    def network(
        self, network: Callable[[Tensor, int], Tensor], sampler: Sampler
    ) -> Callable[[Tensor, int], Tensor]:
        """Return a network for a diffusion sampler whose outputs imply the guided estimate of the clean chunk."""
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


class Given(NamedTuple):
    """Actions of a chunk that a policy is given, instead of predicting them.

    Attributes:
        actions: (B, H, A) normalized; their values do not matter where ``mask`` is false.
        mask: (B, H) bool, true where an action is given.
    """

    actions: Tensor
    mask: Tensor

    def fill(self, chunk: Tensor) -> Tensor:
        """Return chunks (B, H, A) with the given actions filled in."""
        return torch.where(self.mask[..., None], self.actions, chunk)

    def rest(self, weight: Tensor | None) -> Tensor:
        """Return loss weights (B, H) that are 0 for the given actions.

        Args:
            weight: (B, H) weights of the loss, or bool; None: equal weights.
        """
        return ~self.mask if weight is None else weight * ~self.mask


def draw_given(actions: Tensor, first: int, max_delay: int) -> Given | None:
    """Draw the number of given actions for each training sample: 0 to ``max_delay``, all equally likely.

    Args:
        actions: (B, H, A) demonstrated actions.
        first: position of the present action in a chunk.
        max_delay: D, the largest number of given actions.

    Returns:
        The given actions; None if ``max_delay`` is 0.
    """
    if not max_delay:
        return None
    delay = torch.randint(max_delay + 1, (len(actions),), device=actions.device)
    return Given(actions, given_places(delay, first, actions.shape[1]))


def given_places(delay: Tensor, first: int, steps: int) -> Tensor:
    """Mark the positions of the given actions in chunks: (B, steps) bool.

    Args:
        delay: (B,) number of given actions, from the present action on.
        first: position of the present action in a chunk.
        steps: H, number of actions in a chunk.
    """
    place = torch.arange(steps, device=delay.device) - first
    return (place >= 0) & (place < delay[:, None])
