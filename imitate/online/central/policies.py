"""The policy workers of a training: which weights each has, and who takes the place of one that is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from imitate.crew import Limits, Lost
from imitate.crew.backend import Answer, Backend, Member, Unprepared
from imitate.errors import WorkerError
from imitate.online.central.policy_worker import PolicyPlan, PolicyWork, Status, Weights

LOOK_S = 1.0
"""Time between two looks whether a policy worker still answers."""


@dataclass(frozen=True)
class Packed:
    """Weights as their backend packs them, the number of their publication, and the updates behind them."""

    number: int
    version: int
    packed: Any


class PolicyWorkers:
    """Policy workers, each replaced where it dies or hangs.

    Args:
        plan: of each.
        number: how many.
        backend: where they run.
        limits: after which one counts as hung.
        on_loss: called with what happened to one that is replaced.
    """

    def __init__(
        self,
        plan: PolicyPlan,
        number: int,
        backend: Backend[Any],
        limits: Limits,
        on_loss: Callable[[str], None],
    ) -> None:
        self._backend, self._limits, self._on_loss = backend, limits, on_loss
        self._workers = [PolicyWorker(plan, backend) for _ in range(number)]
        self._newest, self._look = Packed(0, 0, None), backend.pack(None)

    def publish(self, weights: Weights) -> None:
        """Give weights, which are pickled once, to all workers, and wait until those that run act with them.

        A worker that is being started gets them too; it is waited for only where there is no other.
        """
        number = self._newest.number + 1
        self._newest = Packed(number, weights.published.version, self._backend.pack(weights))
        while not self._is_published():
            self.tend()
            busy = self.busy()
            for member in self._backend.heard(list(busy), self._limits):
                self.hear(busy[member])

    def tend(self) -> None:
        """Give each worker that has nothing to do the newest weights, or ask for a sign of life."""
        for worker in self._workers:
            if worker.is_busy:
                continue
            if worker.has.number < self._newest.number:
                worker.give(self._newest)
            elif worker.is_suspect or time.monotonic() - worker.heard_s > LOOK_S:
                worker.give(replace(worker.has, packed=self._look))

    def busy(self) -> Mapping[Member, PolicyWorker]:
        """Return the workers of which something is due to be heard."""
        return {worker.member: worker for worker in self._workers if worker.is_busy}

    def hear(self, worker: PolicyWorker) -> None:
        """Take in what was heard of a worker."""
        loss = worker.receive()
        if loss is not None:
            self._on_loss(f"policy worker: {loss.reason}")
            worker.start_anew()

    def of(self, number: int) -> PolicyWorker | None:
        """Return the worker that an environment worker asks, the same as long as it runs; None: none is ready."""
        home = self._workers[number % len(self._workers)]
        ready = [worker for worker in self._workers if self._is_ready(worker)]
        return home if home in ready else ready[number % len(ready)] if ready else None

    def batch_size(self) -> float:
        """Return the mean number of observations of a prediction; 0 before the first."""
        found = [worker.status for worker in self._workers if worker.status is not None]
        batches = sum(status.batches for status in found)
        return sum(status.rows for status in found) / max(1, batches)

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.member.stop()

    def _is_ready(self, worker: PolicyWorker) -> bool:
        is_here = worker.status is not None and not worker.is_suspect
        return is_here and worker.has.number == self._newest.number

    def _is_published(self) -> bool:
        ready = [worker for worker in self._workers if self._is_ready(worker)]
        behind = [worker for worker in self._workers if worker.status and worker not in ready]
        return bool(ready) and not behind


class PolicyWorker:
    """A policy worker, and which weights it has.

    Attributes:
        status: its last one; None: it is being started.
        has: the weights that it acts with.
        is_suspect: an environment worker has lost it.
        heard_s: time of the last status.
    """

    def __init__(self, plan: PolicyPlan, backend: Backend[Any]) -> None:
        self._plan, self._backend = plan, backend
        self._start()

    def _start(self) -> None:
        self.member: Member = self._backend.start(partial(PolicyWork, self._plan))
        self.status: Status | None = None
        self.has = Packed(-1, -1, None)
        self._given: Packed | None = None
        self.is_suspect, self.heard_s = False, 0.0

    @property
    def is_busy(self) -> bool:
        """True where an answer of it is due."""
        return self._given is not None

    def give(self, item: Packed) -> None:
        """Give weights, or what asks for a sign of life."""
        self._given = item
        self.member.give(item.packed)

    def receive(self) -> Lost | None:
        """Take note of its status; return its loss, where it is gone or hangs.

        Raises:
            UserError: it could not be prepared, or cannot take the weights.
        """
        answer = self.member.answer()
        if isinstance(answer, Unprepared):
            raise answer.error
        if isinstance(answer, Lost) and answer.died:
            return answer
        if isinstance(answer, Answer) and self._given is not None:
            # What was packed is not kept: its backend may then free the memory.
            self.status, self.has = answer.value, replace(self._given, packed=None)
            self._given = None
            self.is_suspect, self.heard_s = False, time.monotonic()
            return None
        raise WorkerError(f"policy worker: {getattr(answer, 'reason', answer)}")

    def start_anew(self) -> None:
        """Start another worker in its place."""
        self.member.stop()
        self._start()
