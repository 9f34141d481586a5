"""Workers that collect steps: their requests, their work, and their replacement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from imitate.crew import Limits, Lost, Reports
from imitate.crew.backend import Answer, Backend, Member, Unprepared
from imitate.errors import EnvError
from imitate.online.acting_weights import Published, load_acting_weights
from imitate.online.blueprint import Blueprint
from imitate.online.steps import Collected
from imitate.system.processes import MAKE, MAKE_FACTOR

PATIENCE_S = 2.0
"""Seconds that idle workers have to end."""


def collector_limits(step_timeout_s: float, start_timeout_s: float) -> Limits:
    """Return the limits of a collecting worker: for a step or reset, and for its start with its environments."""
    return Limits(start_timeout_s / MAKE_FACTOR, step_timeout_s, start_s=start_timeout_s)


@dataclass(frozen=True)
class Request:
    """Request for steps; the answer is :class:`Collected` as a dictionary and the worker's state.

    Attributes:
        num_steps: number of steps of each environment.
        random: true to act randomly.
        progress: fraction of the training that is over.
        weights: weights to act with.
        state: state to resume from, see :attr:`Seat.state`.
    """

    num_steps: int
    random: bool
    progress: float
    weights: Published
    state: dict[str, Any] | None = None


class Seat:
    """The environments of a blueprint, their current worker, and its current request.

    A worker first gets None, which it answers after making its environments: requests with weights are sent only to
    started workers, and nobody waits for a worker that has not started yet.

    Args:
        blueprint: blueprint of its environments and its policy.
        backend: back end on which its workers run.

    Attributes:
        request: request that the worker has not answered, or None.
        is_ready: true if the worker has made its environments.
        state: state of the worker after its last answer: episode numbers and random generators.
        losses: number of workers lost since it was last set to 0.
        is_first: true if no worker has been lost yet.
    """

    def __init__(self, blueprint: Blueprint, backend: Backend[Any]) -> None:
        self.blueprint, self._backend = blueprint, backend
        self.state: dict[str, Any] | None = None
        self.losses, self.is_first = 0, True
        self._restores = False
        self._start()

    @property
    def is_idle(self) -> bool:
        """True if the worker can be sent a request."""
        return self.is_ready and self.request is None

    def _start(self) -> None:
        self.request: Request | None = None
        self.is_ready = False
        self.member: Member = self._backend.start(partial(CollectorWork, self.blueprint))
        self.member.give(self._backend.pack(None))

    def send(self, request: Request, packed: Any) -> None:
        """Ask for steps; a lost worker is noticed when its answer is received.

        Args:
            request: request to the worker.
            packed: the same request, packed once by the back end for all workers.
        """
        self.request = request
        if self._restores:
            self._restores = False
            packed = self._backend.pack(replace(request, state=self.state))
        self.member.give(packed)

    def receive(self) -> Collected | Lost | None:
        """Return the received steps, or the loss of the worker, or None if it has only started.

        Raises:
            UserError: the worker could not be prepared, or its environments fail each time.
        """
        answer = self.member.answer()
        if isinstance(answer, Unprepared):
            raise answer.error
        if isinstance(answer, Lost):
            if answer.died:
                return answer
            lanes = self.blueprint.lanes.tolist()
            raise answer.error or EnvError(f"environments {lanes} failed: {answer.reason}")
        if not isinstance(answer, Answer):
            return None  # the worker has started, and makes its environments now
        if not self.is_ready:
            self.is_ready = True
            return None
        self.request = None
        collected, self.state = answer.value
        return Collected(**collected)

    def start_anew(self) -> None:
        """Start another worker, whose episodes have different seeds than the lost ones."""
        self.member.stop()
        self.losses, self.is_first = self.losses + 1, False
        if self.state is not None:
            begun = [number + 1_000_000 for number in self.state["begun"]]
            self.restore({**self.state, "begun": begun})
        self._start()

    def restore(self, state: dict[str, Any] | None) -> None:
        """Let the worker resume from a state at its next request."""
        self.state, self._restores = state, state is not None

    def stop(self) -> None:
        """End the worker, which was asked to stop."""
        self.member.stop(patience_s=PATIENCE_S if self.is_idle else 0.0)


class CollectorWork:
    """Work of a worker process: answers requests with steps."""

    def __init__(self, blueprint: Blueprint, reports: Reports) -> None:
        reports(MAKE)
        torch.set_num_threads(1)
        torch.manual_seed(blueprint.seed)
        self._algo = blueprint.acting_algo()
        self._collector = blueprint.collector(self._algo)
        self._collector.on_step = partial(reports, "")
        self._loaded: str | None = None
        self.close: Callable[[], None] = self._collector.close
        reports("")

    def __call__(self, request: Request | None) -> Any:
        """Return steps as a dictionary and the state after them, or None if no steps are requested."""
        if request is None:
            return None
        collector, weights = self._collector, request.weights
        if request.state is not None:
            collector.load_state_dict(request.state)
            torch.set_rng_state(torch.from_numpy(request.state["rng"].copy()))
        if weights.shared.key != self._loaded:
            load_acting_weights(self._algo, weights.shared.get())
            self._loaded = weights.shared.key
        collector.progress, collector.version = request.progress, weights.version
        came = collector.collect(request.num_steps, random=request.random)
        state = {**collector.state_dict(), "rng": torch.get_rng_state().numpy()}
        return vars(came), state
