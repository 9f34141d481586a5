"""Export of the denoising of diffusion policies as a loop, so that the model does not grow with their number of steps.

The exporter traces one run of Python code, which unrolls loops. So all steps are traced as one empty operator, and a
single step separately; afterwards the operator is replaced by ONNX's ``Loop`` around the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

from imitate.algo.base.algo import Algo
from imitate.functional.diffusion import Sampler, predicted_data, predicted_noise
from imitate.models.denoiser import AtSteps

_DOMAIN, _OPERATOR = "imitate", "Denoise"
OPSETS = {_DOMAIN: 1}
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
            return g.op(f"{_DOMAIN}::{_OPERATOR}", x, *per_step).setType(x.type())

    return Denoise


def with_loop(model: bytes, body: bytes, num_steps: int) -> bytes:
    """Replace the operator by a loop.

    Args:
        model: ONNX model with the operator.
        body: ONNX model of a step.
        num_steps: number of steps of the loop.
    """
    outer, step = onnx.load_from_string(model), onnx.load_from_string(body)
    nodes = outer.graph.node
    place = next(i for i, node in enumerate(nodes) if node.domain == _DOMAIN)
    operator = nodes[place]
    counter = helper.make_tensor(f"{_OPERATOR}/steps", TensorProto.INT64, [], [num_steps])
    always = helper.make_tensor(f"{_OPERATOR}/always", TensorProto.BOOL, [], [True])
    graph = _body(step.graph, list(operator.input[1:]))
    loop = helper.make_node(
        "Loop", [counter.name, always.name, operator.input[0]], list(operator.output), body=graph
    )
    nodes.remove(operator)
    nodes.insert(place, loop)
    outer.graph.initializer.extend([counter, always])
    kept = [entry for entry in outer.opset_import if entry.domain != _DOMAIN]
    del outer.opset_import[:]
    outer.opset_import.extend(kept)
    data: bytes = outer.SerializeToString()
    return data


def _body(step: Any, per_step: list[str]) -> Any:
    """Return the graph of one iteration: it selects its rows from tensors of the outer graph, then runs the step."""
    renamed = {name: f"{_OPERATOR}/{name}" for node in step.node for name in node.output if name}
    renamed |= {x.name: f"{_OPERATOR}/{x.name}" for x in (*step.initializer, *step.input)}
    for node in step.node:
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
    for weight in step.initializer:
        weight.name = renamed[weight.name]
    turn = helper.make_tensor_value_info("turn", TensorProto.INT64, [])
    running = helper.make_tensor_value_info("running", TensorProto.BOOL, [])
    goes_on = helper.make_tensor_value_info("goes_on", TensorProto.BOOL, [])
    chunk, *rows = step.input
    picks = [
        helper.make_node("Gather", [outside, turn.name], [renamed[row.name]], axis=0)
        for outside, row in zip(per_step, rows, strict=True)
    ]
    (after,) = step.output
    chunk.name, after.name = renamed[chunk.name], renamed[after.name]
    same = helper.make_node("Identity", [running.name], [goes_on.name])
    return helper.make_graph(
        [*picks, *step.node, same],
        "step",
        [turn, running, chunk],
        [goes_on, after],
        list(step.initializer),
    )
