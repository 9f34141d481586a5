"""Predictions for many sessions by one policy: all waiting requests are answered in one batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from imitate.system import clock

Request = TypeVar("Request")
Reply = TypeVar("Reply")


@dataclass
class TimedReply(Generic[Reply]):
    """Reply with its timing.

    Attributes:
        reply: reply of the policy.
        queued_ms: milliseconds until its prediction began.
        infer_ms: milliseconds of the prediction.
        together: number of requests answered by the same prediction.
    """

    reply: Reply
    queued_ms: float
    infer_ms: float
    together: int


@dataclass
class _Job(Generic[Request, Reply]):
    request: Request
    arrived: float = field(default_factory=lambda: clock.now())
    answer: TimedReply[Reply] | None = None
    error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self.answer is not None or self.error is not None


class Scheduler(Generic[Request, Reply]):
    """Runs one prediction at a time, for all requests that wait when it begins.

    A request therefore waits for at most one prediction before its own. The prediction runs in the thread of one of the
    requests, so that a single client causes no thread switches.

    Args:
        predict: function from requests to equally many replies in the same order; it may raise errors.
    """

    def __init__(self, predict: Callable[[Sequence[Request]], Sequence[Reply]]) -> None:
        self._predict = predict
        self._changed = threading.Condition()
        self._waiting: list[_Job[Request, Reply]] = []
        self._busy = False

    @property
    def waiting(self) -> int:
        """Number of requests that wait for the next prediction."""
        return len(self._waiting)

    def __call__(self, request: Request) -> TimedReply[Reply]:
        """Return the answer to a request; may be called from any thread.

        Raises:
            Exception: the error that ``predict`` raised for this request.
        """
        job: _Job[Request, Reply] = _Job(request)
        with self._changed:
            self._waiting.append(job)
            clock.wait_for(self._changed, lambda: not self._busy or job.done)
            batch: list[_Job[Request, Reply]] = []
            if not job.done:
                self._busy = True
                batch, self._waiting = self._waiting, []
        if batch:
            try:
                self._run(batch)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
        if job.error is not None:
            raise job.error
        assert job.answer is not None
        return job.answer

    def _run(self, batch: list[_Job[Request, Reply]]) -> None:
        """Answer a batch; if it fails, answer each request separately, so that one cannot break others."""
        try:
            self._answer(batch)
        except BaseException as error:
            if len(batch) == 1 or not isinstance(error, Exception):
                for job in batch:
                    job.error = error
                return
            for job in batch:
                self._run([job])

    def _answer(self, batch: list[_Job[Request, Reply]]) -> None:
        began = clock.now()
        replies = self._predict([job.request for job in batch])
        if len(replies) != len(batch):
            raise RuntimeError(f"{len(batch)} requests got {len(replies)} replies")
        took = 1e3 * (clock.now() - began)
        for job, reply in zip(batch, replies, strict=True):
            job.answer = TimedReply(reply, 1e3 * (began - job.arrived), took, len(batch))
