"""Denoising of diffusion policies that an exporter can write as a loop, so that a model does not grow with its steps.

An exporter traces one run of Python code, which unrolls loops. So all steps are traced as one empty operator, and a
single step separately; :mod:`imitate.deploy.bundle.exporting` replaces the operator by ONNX's ``Loop`` around the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from imitate.algo.base.algo import Algo
from imitate.functional.diffusion import Sampler, predicted_data, predicted_noise
from imitate.models.denoiser import AtSteps

DOMAIN, OPERATOR = "imitate", "Denoise"
"""Name of the operator that stands for all steps."""
OPSETS = {DOMAIN: 1}
"""Custom operators, in the form of the exporter; they are replaced before a bundle is written."""
_COEFFICIENTS = ("alpha", "sigma", "data_factor", "noisy_factor", "noise_factor", "std")


@dataclass
class Loop:
    """A traced loop.

    Attributes:
        step: one step, from a chunk and the step's own coefficients to the next chunk.
        inputs: example inputs of one step.
        num_steps: number of steps.
    """

    step: nn.Module
    inputs: tuple[Tensor, ...]
    num_steps: int


@contextmanager
def looped_denoising(algo: Algo) -> Iterator[list[Loop]]:
    """Let a policy with a diffusion sampler, in its attribute ``sampler``, denoise in an exportable loop.

    Yields:
        the loop, available after a prediction; nothing for other policies.
    """
    loops: list[Loop] = []
    sampler = getattr(algo, "sampler", None)
    if not isinstance(sampler, Sampler):
        yield loops
        return
    algo.__dict__["sampler"] = LoopedSampler(sampler, algo.active_nets, loops)
    try:
        yield loops
    finally:
        algo.__dict__["sampler"] = sampler


class LoopedSampler:
    """The steps of a :class:`~imitate.functional.diffusion.Sampler` as one operator.

    Args:
        sampler: original sampler.
        nets: networks that contain the denoiser.
        loops: list that receives the loop.
    """

    def __init__(self, sampler: Sampler, nets: nn.Module, loops: list[Loop]) -> None:
        self._sampler, self._nets, self._loops = sampler, nets, loops
        self.timesteps = sampler.timesteps
        rows = [[getattr(step, name) for name in _COEFFICIENTS] for step in sampler.steps]
        self._coefficients = torch.tensor(rows)
        fresh = torch.tensor([step.std > 0 for step in sampler.steps])
        self._count = int(fresh.sum())
        # Rows of the fresh noise; steps without noise use the zeros appended to it.
        self._rows = torch.where(fresh, fresh.long().cumsum(0) - 1, self._count)

    def sample(
        self, network: AtSteps, noise: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Run all steps; the arguments are those of the original sampler."""
        fresh = [torch.zeros(1, *noise.shape)]
        if self._count:
            drawn = torch.empty(self._count, *noise.shape).normal_(generator=generator)
            fresh.insert(0, drawn)
        padded = torch.cat(fresh)[self._rows]
        conditions = torch.cat([condition.flatten(1) for condition in network.conditions], dim=1)
        shapes = [tuple(condition.shape[1:]) for condition in network.conditions]
        per_step = (self._coefficients, padded, conditions)
        step = _Step(self._sampler, self._nets, network, shapes)
        if not self._loops:
            examples = tuple(x.detach() for x in (noise, *(values[0] for values in per_step)))
            self._loops.append(Loop(step, examples, len(self.timesteps)))
        return cast(Tensor, _operator(step).apply(noise, *per_step))


class _Step(nn.Module):
    """One denoising step, with coefficients as tensors."""

    def __init__(
        self, sampler: Sampler, nets: nn.Module, network: AtSteps, shapes: list[tuple[int, ...]]
    ) -> None:
        super().__init__()
        self.nets = nets  # the exporter finds weights among the modules
        self._sampler, self._denoise, self._shapes = sampler, network.denoise, shapes
        self.eval()

    def forward(
        self, noisy: Tensor, coefficients: Tensor, fresh: Tensor, condition: Tensor
    ) -> Tensor:
        parts = torch.split(condition, [torch.Size(shape).numel() for shape in self._shapes])
        given = [part.reshape(s) for part, s in zip(parts, self._shapes, strict=True)]
        prediction, clip = self._sampler.prediction, self._sampler.clip
        with torch.enable_grad():  # makes networks avoid their shortcuts for acting
            output = self._denoise(noisy, given).detach()
        alpha, sigma, data_factor, noisy_factor, noise_factor, std = coefficients.unbind(0)
        data = predicted_data(prediction, output, noisy, alpha, sigma)
        if clip is not None:
            data = data.clamp(-clip, clip)
        noise = predicted_noise(prediction, output, noisy, alpha, sigma)
        return data * data_factor + noisy * noisy_factor + noise * noise_factor + fresh * std


def _operator(step: Callable[..., Tensor]) -> Any:
    """Return all steps as one operator of the exported model."""

    class Denoise(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, *per_step: Tensor) -> Tensor:
            if torch.onnx.is_in_onnx_export():
                return x.clone()  # the operator replaces the following code
            for rows in zip(*per_step, strict=True):
                x = step(x, *rows)
            return x

        @staticmethod
        def symbolic(g: Any, x: Any, *per_step: Any) -> Any:
            return g.op(f"{DOMAIN}::{OPERATOR}", x, *per_step).setType(x.type())

    return Denoise
