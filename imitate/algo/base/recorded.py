"""Updates that are recorded once as a CUDA graph and then repeated as a whole.

The CPU needs some microseconds to start each operation on a GPU, which is longer than the GPU needs for most operations
of a small network. A graph starts all operations of an update at once.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from imitate.algo.base.auxiliaries import follow_auxiliaries, learn_auxiliaries
from imitate.algo.base.optimization import Optimization
from imitate.algo.base.overrides import checked_loss

WARM_UP = 3
"""Number of updates per batch shape before recording; they create tensors and kernels that must exist before it."""
MOST_GRAPHS = 4
"""Largest number of recorded graphs; updates on batches of further shapes are computed without a graph."""

Update = Callable[[Any, dict[str, Any]], dict[str, Tensor]]
"""Function of an algorithm and a prepared batch that makes an update and returns scalars to log."""


def update_of(algo: Any) -> Update:
    """Return the function that makes an update of network ``policy``: a recorded one if the algorithm allows it.

    Args:
        algo: an :class:`~imitate.algo.base.algo.Algo`.
    """
    train, optimization = algo.global_config.train, algo.optimization
    wanted = algo.device.type == "cuda" and train.cuda_graph and not train.compile
    fixed = algo.recordable and not algo.schedules
    if not (wanted and fixed and optimization.can_be_recorded):
        return step_by_step
    return RecordedUpdate(step_by_step, optimization, algo.device)


def step_by_step(algo: Any, batch: dict[str, Any]) -> dict[str, Tensor]:
    """Make an update of network ``policy``; return detached scalars."""
    more = learn_auxiliaries(algo, batch)
    with torch.enable_grad():
        loss, info = checked_loss(algo, algo._loss(batch))
    info["Policy_Grad_Norms"] = algo._gradient_step("policy", loss)
    follow_auxiliaries(algo, batch)
    return detached({**info, **more})


def detached(info: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return values to log as tensors without gradients."""
    return {name: torch.as_tensor(value).detach() for name, value in info.items()}


class RecordedUpdate:
    """Function that makes an update on a prepared batch, from a graph as soon as one is recorded for its shapes.

    Values that change between updates and are not tensors on the device are updated outside of the graph: learning
    rates are written to the device before each repetition; schedules and the moving average of the weights advance
    after it.

    Args:
        update: makes one update by ``optimization.step`` and returns scalars to log. Each call with batches of one
            shape makes the same operations on the same tensors.
        optimization: the optimizers.
        device: the CUDA device.

    Attributes:
        graphs: the recorded updates by the shapes of their batches.
        failure: why updates cannot be recorded, or None.
    """

    def __init__(self, update: Update, optimization: Optimization, device: torch.device) -> None:
        self._update, self._optimization, self._device = update, optimization, device
        self.graphs: dict[Any, _Graph] = {}
        self._seen: dict[Any, int] = {}
        self._stream: Any = None
        self.failure: str | None = None

    def __call__(self, algo: Any, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Make an update; return detached scalars on the device."""
        key = _shapes(batch)
        graph = self.graphs.get(key)
        if graph is None:
            seen = self._seen[key] = self._seen.get(key, 0) + 1
            if self.failure is not None or seen <= WARM_UP or len(self.graphs) >= MOST_GRAPHS:
                return self._step_by_step(algo, batch, seen)
            graph = self._recorded(algo, batch)
            if graph is None:
                return self._step_by_step(algo, batch)
            self.graphs[key] = graph
        graph.rates.write()
        torch._foreach_copy_(graph.inputs, [leaf for _, leaf in tensors_in(batch)])
        graph.replay()
        for name in graph.steps:
            self._optimization.advance(name)
        return graph.info()

    def _step_by_step(self, algo: Any, batch: dict[str, Any], seen: int = 0) -> dict[str, Tensor]:
        """Compute an update without a graph, on the stream that is later used for recording, as CUDA graphs require."""
        if self.failure is not None:
            return self._update(algo, batch)
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        present = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(present)
        with torch.cuda.stream(self._stream):
            info = self._watched(algo, batch) if seen == WARM_UP else self._update(algo, batch)
        present.wait_stream(self._stream)
        return info

    def _watched(self, algo: Any, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Make an update; give up recording if the update waits for the GPU, which a CUDA graph cannot do."""
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                info = self._update(algo, batch)
            finally:
                torch.cuda.set_sync_debug_mode(before)
        waits = [each for each in said if "synchronizing CUDA operation" in str(each.message)]
        if waits:
            self._give_up(f"{waits[0].filename}:{waits[0].lineno} waits for the GPU")
        return info

    def _give_up(self, reason: str) -> None:
        self.failure = reason
        warnings.warn(
            f"updates are computed step by step, because they cannot be recorded as a CUDA graph: {reason}. Set "
            "train.cuda_graph=false to skip the attempt.",
            stacklevel=2,
        )

    def _recorded(self, algo: Any, batch: dict[str, Any]) -> _Graph | None:
        """Record an update as a graph without computing it; return None if that fails."""
        drawn = _processor_draws()
        try:
            update = partial(self._update, algo)
            graph = _record(update, self._optimization, batch, self._stream)
        except RuntimeError as error:
            _end_recording(self._stream)
            self._give_up(str(error).partition("\n")[0])
            return None
        if _processor_draws() != drawn:
            self._give_up("random numbers are drawn on the CPU")
            return None
        return graph


class _Rates:
    """Learning rates on the device, in the order of the optimizers and their groups of weights."""

    def __init__(self, optimization: Optimization, device: torch.device) -> None:
        self._optimizers = list(optimization.optimizers.values())
        self._written = self._now()
        self.by_optimizer = [
            [torch.tensor(group["lr"], device=device) for group in optimizer.param_groups]
            for optimizer in self._optimizers
        ]

    def _now(self) -> list[list[float]]:
        return [[float(group["lr"]) for group in each.param_groups] for each in self._optimizers]

    def write(self) -> None:
        """Copy learning rates that have changed to the device."""
        rates = self._now()
        if rates == self._written:
            return
        for tensors, old, new in zip(self.by_optimizer, self._written, rates, strict=True):
            for tensor, before, rate in zip(tensors, old, new, strict=True):
                if before != rate:
                    tensor.fill_(rate)
        self._written = rates


class _Graph(NamedTuple):
    """A recorded update.

    Attributes:
        replay: computes the update.
        inputs: tensors of the batch that the graph reads, in the order of :func:`tensors_in`.
        rates: learning rates that the graph reads.
        steps: networks whose optimizers make a step, in order.
        names: names of the scalars in ``scalars``.
        scalars: (N,) values to log, overwritten by each repetition.
        constants: values to log that the graph does not compute.
    """

    replay: Callable[[], None]
    inputs: list[Tensor]
    rates: _Rates
    steps: list[str]
    names: list[str]
    scalars: Tensor | None
    constants: dict[str, Tensor]

    def info(self) -> dict[str, Tensor]:
        """Return the scalars of the last repetition."""
        values = () if self.scalars is None else self.scalars.clone().unbind()
        return {**self.constants, **dict(zip(self.names, values, strict=True))}


def _record(
    update: Callable[[dict[str, Any]], dict[str, Tensor]],
    optimization: Optimization,
    batch: dict[str, Any],
    stream: Any,
) -> _Graph:
    rates = _Rates(optimization, stream.device)
    inputs = [leaf.clone() for _, leaf in tensors_in(batch)]
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    graph = torch.cuda.CUDAGraph()
    # After this call, cuBLAS allocates its workspace anew, from the graph's memory pool. A workspace outside of the
    # pool may be freed by torch.compile, and the graph would then use memory of other tensors.
    torch._C._cuda_clearCublasWorkspaces()
    # "thread_local": CUDA calls of other threads, such as the one that pins memory, do not abort the recording
    with (
        torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
        optimization.recording(rates.by_optimizer) as steps,
    ):
        info = update(with_tensors(batch, iter(inputs)))
        computed = {name: value for name, value in info.items() if value.device == stream.device}
        scalars = (
            torch.stack([value.float().reshape(()) for value in computed.values()])
            if computed
            else None
        )
    constants = {name: value for name, value in info.items() if name not in computed}
    return _Graph(graph.replay, inputs, rates, steps, list(computed), scalars, constants)


def _end_recording(stream: Any) -> None:
    """Reset torch's generator, which stays in recording mode after an error, by recording a trivial graph."""
    value = torch.zeros(1, device=stream.device)
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
        value.add_(1)


def _processor_draws() -> tuple[Any, ...]:
    """Return the states of the CPU's random number generators, which must not change while a graph is recorded."""
    own: Any = np.random.get_state()
    return random.getstate(), own[1].tobytes(), own[2], torch.get_rng_state().numpy().tobytes()


def tensors_in(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a nested batch with their paths."""
    for name, value in tree.items():
        if isinstance(value, Tensor):
            yield prefix + name, value
        elif isinstance(value, Mapping):
            yield from tensors_in(value, f"{prefix}{name}/")


def with_tensors(tree: Mapping[str, Any], tensors: Iterator[Tensor]) -> dict[str, Any]:
    """Return a copy of a batch with new tensors, given in the order of :func:`tensors_in`."""
    return {
        name: next(tensors)
        if isinstance(value, Tensor)
        else with_tensors(value, tensors)
        if isinstance(value, Mapping)
        else value
        for name, value in tree.items()
    }


def _shapes(batch: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the key of a graph: path, shape and dtype of each tensor of a batch, and all values of other types."""
    others = [(k, v) for k, v in batch.items() if not isinstance(v, Tensor | Mapping)]
    return (
        *((path, tuple(value.shape), value.dtype) for path, value in tensors_in(batch)),
        *((name, repr(value)) for name, value in others),
    )
