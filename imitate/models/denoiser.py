"""Networks of diffusion and flow policies: an encoder with a denoiser of chunks or a velocity field of actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from imitate.functional.realtime import Given
from imitate.functional.sampling import fill_normal
from imitate.models.actor import GroupEncoder, Inputs, Obs, PolicyNetwork
from imitate.models.denoising_networks import DenoisingMLP
from imitate.models.mlp import MLP, FullPrecisionLinear, gelu
from imitate.models.unet import ConditionalUnet1D


class Denoiser(nn.Module):
    """Encoder and denoiser of a policy.

    Args:
        encoder: encoder of observations and goal; its features are the condition.
        network: maps a noisy chunk (B, T, A), or (B, T, A + 1) with ``marks``, its step (B,) or a number, and the
            condition to (B, T, A).
        frames: F: the condition consists of the features of the last F observations, (B, F, D), oldest first; None if
            the condition is one vector (B, D).
        marks: true if the network has one more input per action, which is 1 for given actions and 0 for noisy actions;
            see :mod:`imitate.functional.realtime`.
    """

    def __init__(
        self,
        encoder: GroupEncoder,
        network: nn.Module,
        frames: int | None = None,
        *,
        marks: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.network = network
        self.frames = frames
        self.marks = marks

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the network and the encoder, which :meth:`condition` calls separately from :meth:`forward`."""
        self.encoder.compile(*args, **kwargs)
        super().compile(*args, **kwargs)

    def condition(self, obs: Obs, goal: Obs | None = None) -> Tensor:
        """Return the features of observations ``(B, [F,] ...)``: ``(B, D)``, or ``(B, F, D)``."""
        features: Tensor = self.encoder(obs, goal)
        if self.frames == 1:
            features = features.unsqueeze(1)
        return features

    def forward(
        self,
        noisy: Tensor,
        step: Tensor | float,
        condition: Tensor,
        given: Given | None = None,
    ) -> Tensor:
        """Return the network's prediction for noisy chunks ``(B, T, A)``; ``given`` is for a network with marks."""
        return cast(Tensor, self.network(self._seen(noisy, given), step, condition))

    def for_steps(
        self, steps: Sequence[float], condition: Tensor, given: Given | None = None
    ) -> AtSteps:
        """Return a function like :meth:`forward` for given steps and one condition; common parts are computed once."""
        network, times = self.network, tuple(steps)
        if isinstance(network, ConditionalUnet1D):
            films = network.films(times, condition)
            return AtSteps(times, films, lambda x, at: network.denoise(self._seen(x, given), at))
        if isinstance(network, DenoisingMLP):
            stacked = [network.stacked(times, condition)]
            return AtSteps(
                times, stacked, lambda x, at: network.denoise(self._seen(x, given), at[0])
            )
        numbers = torch.tensor(times, dtype=torch.float32, device=condition.device)
        each = [numbers.unsqueeze(1).expand(-1, len(condition))]
        each.append(condition.expand(len(times), *condition.shape))
        return AtSteps(times, each, lambda x, at: self(x, *at, given))

    def _seen(self, noisy: Tensor, given: Given | None) -> Tensor:
        """Return the input of the network: noisy chunks (B, T, A) with the given actions, and their marks."""
        if not self.marks:
            return noisy
        if given is None:
            return pad(noisy, (0, 1))
        return torch.cat((given.fill(noisy), given.mask.to(noisy.dtype)[..., None]), dim=-1)


class AtSteps:
    """Denoiser for the steps of one sampling, called with a noisy chunk (B, T, A) and one of these steps.

    Args:
        steps: the S steps.
        conditions: condition of each step, (S, ...).
        denoise: maps a noisy chunk and the conditions of a step to the prediction.

    Attributes:
        conditions, denoise: the arguments with these names.
    """

    def __init__(
        self,
        steps: tuple[float, ...],
        conditions: Sequence[Tensor],
        denoise: Callable[[Tensor, list[Tensor]], Tensor],
    ) -> None:
        self.conditions, self.denoise = conditions, denoise
        per_step = zip(*(condition.unbind(0) for condition in conditions), strict=True)
        self._of_step = dict(zip(steps, map(list, per_step), strict=True))

    def __call__(self, noisy: Tensor, step: float) -> Tensor:
        """Return the network's prediction for a noisy chunk (B, T, A) at a step of denoising."""
        return self.denoise(noisy, self._of_step[step])


def gaussian_noise(
    shape: Sequence[int], like: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """Sample standard normal numbers on the device of ``like``."""
    return torch.empty(tuple(shape), device=like.device).normal_(generator=generator)


class NoiseNetwork(PolicyNetwork):
    """Network from an observation and a vector (B, A) to another vector (B, A): a velocity field or a one-step policy.

    Args:
        encoder: encoder of observation and goal.
        layer_dims: widths of the hidden layers.
        action_dim: size A of an action.
        has_time: true if the input also has a time, for a velocity field.
        dropout: dropout after each hidden layer.
    """

    def __init__(
        self,
        encoder: GroupEncoder,
        layer_dims: Sequence[int],
        action_dim: int,
        *,
        has_time: bool,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.encoder, self.action_dim = encoder, action_dim
        size = encoder.output_dim + action_dim + has_time
        self.mlp = MLP(size, layer_dims, gelu, dropout)
        self.last = FullPrecisionLinear(self.mlp.output_dim, action_dim)

    def forward(self, features: Tensor, x: Tensor, time: Tensor | None = None) -> Tensor:
        """Map the encoder's features (B, D), vectors (B, [N,] A) and times (B, [N,] 1) to vectors (B, [N,] A)."""
        if x.dim() == 3:
            features = features.unsqueeze(1).expand(-1, x.shape[1], -1)
        inputs = [features, x] if time is None else [features, x, time]
        out: Tensor = self.last(self.mlp(torch.cat(inputs, -1)))
        return out

    def cloning_errors(self, obs: Obs, goal: Obs | None, data: Tensor) -> Tensor:
        """Return the squared errors (B, A) of a velocity field on the lines from new noise to data (B, A).

        With noise x_0 from N(0, 1) and a time t from [0, 1]: (v(s, (1 - t) x_0 + t a, t) - (a - x_0))^2.
        """
        noise, time = torch.randn_like(data), torch.rand_like(data[:, :1])
        made: Tensor = self(self.encoder(obs, goal), (1.0 - time) * noise + time * data, time)
        return (made - (data - noise)).square()

    def follow(self, features: Tensor, noise: Tensor, num_steps: int) -> Tensor:
        """Return the actions in [-1, 1] to which a velocity field moves noise (B, [N,] A) in equal steps."""
        x = noise
        for k in range(num_steps):
            time = torch.full_like(x[..., :1], k / num_steps)
            x = x + self(features, x, time) / num_steps
        return x.clamp(-1.0, 1.0)

    def candidates(
        self,
        obs: Obs,
        goal: Obs | None,
        number: int,
        num_steps: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draw noise and return the actions (B, number, A) to which a velocity field moves it: :meth:`follow`."""
        features = self.encoder(obs, goal)
        noise = features.new_empty(len(features), number, self.action_dim)
        return self.follow(features, fill_normal(noise, generator), num_steps)

    def actions(
        self, obs: Obs, goal: Obs | None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw noise and return actions (B, A) of the one-step policy, in [-1, 1]."""
        features = self.encoder(obs, goal)
        noise = fill_normal(features.new_empty(len(features), self.action_dim), generator)
        made: Tensor = self(features, noise)
        return made.clamp(-1.0, 1.0)

    def decide(
        self, inputs: Inputs, explore: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return actions (B, A) of the one-step policy."""
        return self.actions(inputs["obs"], inputs["goal"], generator)
