"""The policy workers of a training: the weights of each, and the replacement of lost ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from imitate.crew import Limits, Lost
from imitate.crew.backend import Answer, Backend, Member, Unprepared
from imitate.errors import WorkerError
from imitate.train.online.central.policy_worker import PolicyPlan, PolicyWork, Status, Weights

LOOK_S = 1.0
"""Seconds between two checks that a policy worker still answers."""


@dataclass(frozen=True)
class PackedWeights:
    """Weights packed by their back end, the number of their publication, and their number of updates."""

    number: int
    version: int
    packed: Any


class PolicyWorkers:
    """Policy workers; each is replaced if it dies or hangs.

    Args:
        plan: plan of each worker.
        number: number of workers.
        backend: back end on which they run.
        limits: time limits after which a worker counts as hung.
        on_loss: called with the reason when a worker is replaced.
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
        self._newest, self._look = PackedWeights(0, 0, None), backend.pack(None)

    def publish(self, weights: Weights) -> None:
        """Send weights, pickled once, to all workers, and wait until the running ones act with them.

        A starting worker also gets them; the call waits for it only if there is no other worker.
        """
        number = self._newest.number + 1
        self._newest = PackedWeights(number, weights.published.version, self._backend.pack(weights))
        while not self._is_published():
            self.tend()
            busy = self.busy()
            for member in self._backend.heard(list(busy), self._limits):
                self.hear(busy[member])

    def tend(self) -> None:
        """Send each idle worker the newest weights, or ask for a sign of life."""
        for worker in self._workers:
            if worker.is_busy:
                continue
            if worker.has.number < self._newest.number:
                worker.give(self._newest)
            elif worker.is_suspect or time.monotonic() - worker.heard_s > LOOK_S:
                worker.give(replace(worker.has, packed=self._look))

    def busy(self) -> Mapping[Member, PolicyWorker]:
        """Return the workers from which a message is expected."""
        return {worker.member: worker for worker in self._workers if worker.is_busy}

    def hear(self, worker: PolicyWorker) -> None:
        """Receive a message from a worker."""
        loss = worker.receive()
        if loss is not None:
            self._on_loss(f"policy worker: {loss.reason}")
            worker.start_anew()

    def of(self, number: int) -> PolicyWorker | None:
        """Return the policy worker for an environment worker, the same one while it runs; None if none is ready."""
        home = self._workers[number % len(self._workers)]
        ready = [worker for worker in self._workers if self._is_ready(worker)]
        return home if home in ready else ready[number % len(ready)] if ready else None

    def batch_size(self) -> float:
        """Return the mean number of observations per prediction, or 0 before the first."""
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
    """A policy worker and its weights.

    Attributes:
        status: its last status, or None while it starts.
        has: weights with which it acts.
        is_suspect: true if an environment worker has lost it.
        heard_s: time of the last status.
    """

    def __init__(self, plan: PolicyPlan, backend: Backend[Any]) -> None:
        self._plan, self._backend = plan, backend
        self._start()

    def _start(self) -> None:
        self.member: Member = self._backend.start(partial(PolicyWork, self._plan))
        self.status: Status | None = None
        self.has = PackedWeights(-1, -1, None)
        self._given: PackedWeights | None = None
        self.is_suspect, self.heard_s = False, 0.0

    @property
    def is_busy(self) -> bool:
        """True if it owes an answer."""
        return self._given is not None

    def give(self, item: PackedWeights) -> None:
        """Send weights, or a request for a sign of life."""
        self._given = item
        self.member.give(item.packed)

    def receive(self) -> Lost | None:
        """Receive its status; return a loss if it is gone or hangs.

        Raises:
            UserError: it could not be prepared, or cannot take the weights.
        """
        answer = self.member.answer()
        if isinstance(answer, Unprepared):
            raise answer.error
        if isinstance(answer, Lost) and answer.died:
            return answer
        if isinstance(answer, Answer) and self._given is not None:
            # The packed weights are not kept, so that their back end may free the memory.
            self.status, self.has = answer.value, replace(self._given, packed=None)
            self._given = None
            self.is_suspect, self.heard_s = False, time.monotonic()
            return None
        raise WorkerError(f"policy worker: {getattr(answer, 'reason', answer)}")

    def start_anew(self) -> None:
        """Replace it by a new worker."""
        self.member.stop()
        self._start()
