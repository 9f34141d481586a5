"""Network of a diffusion or flow policy: an encoder of the observations and a denoiser of the chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from imitate.functional.realtime import Given
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.denoising_networks import DenoisingMLP
from imitate.models.unet import ConditionalUnet1D


class Denoiser(nn.Module):
    """Encoder and denoiser of a policy.

    Args:
        encoder: encoder of observations and goal; its features are the condition.
        network: maps a noisy chunk (B, T, A), or (B, T, A + 1) with ``marks``, its step (B,) or a number, and the
            condition to (B, T, A).
        frames: F: the condition consists of the features of the last F observations, (B, F, D), oldest first; None: the
            condition is one vector (B, D).
        marks: true if the network has one more input per action, 1 if the action is given and 0 if it is noisy; see
            :mod:`imitate.functional.realtime`.
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
        """Also compile the encoder, which :meth:`condition` calls separately from :meth:`forward`."""
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
        """Return :meth:`forward` for these steps and this condition, with common parts computed only once."""
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
    """A denoiser at the steps of one sampling, called with a noisy chunk (B, T, A) and a step.

    Args:
        steps: the S steps.
        conditions: condition of each step, (S, ...).
        denoise: maps a noisy chunk and the conditions of a step to the prediction.

    Attributes:
        conditions, denoise: as given.
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
        """Predict for a noisy chunk (B, T, A) at a step."""
        return self.denoise(noisy, self._of_step[step])


def gaussian_noise(
    shape: Sequence[int], like: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """Sample standard normal numbers on the device of ``like``."""
    return torch.empty(tuple(shape), device=like.device).normal_(generator=generator)
