"""Evaluations beside the training: worker processes play the episodes, a thread waits for them.

At most one evaluation runs and one waits. A newer request takes the place of the waiting one. The trainer requests the
last epoch at the end, so it is always evaluated.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from imitate.evaluation.episode_pool import EvaluationCancelledError
from imitate.evaluation.eval_result import EvalResult


@dataclass(frozen=True)
class Request:
    """Request of an evaluation."""

    epoch: int
    step: int
    checkpoint: Path


@dataclass(frozen=True)
class Outcome:
    """Outcome of an evaluation: a result per environment, or the reason why it failed."""

    request: Request
    results: tuple[EvalResult, ...]
    error: str | None
    wall_s: float


Evaluate = Callable[[Request], Sequence[EvalResult]]


class BackgroundEvaluations:
    """Queue of evaluations, run one after the other in a thread.

    Args:
        evaluate: runs one evaluation; called in the thread.
    """

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._running: Request | None = None
        self._waiting: Request | None = None

    @property
    def busy_with(self) -> int | None:
        """Epoch under evaluation."""
        return None if self._running is None else self._running.epoch

    @property
    def pending(self) -> set[int]:
        """Epochs under evaluation or waiting for it."""
        return {r.epoch for r in (self._running, self._waiting) if r is not None}

    def request(self, request: Request) -> Request | None:
        """Start an evaluation or queue it; return the queued request that it replaces, if any."""
        if self._running is None:
            self._start(request)
            return None
        left_out, self._waiting = self._waiting, request
        return left_out

    def collect(self, timeout_s: float = 0.0) -> Outcome | None:
        """Return a finished evaluation, if one ends within ``timeout_s``, and start the queued one."""
        if self._running is None:
            return None
        try:
            outcome = self._outcomes.get(block=timeout_s > 0, timeout=timeout_s or None)
        except queue.Empty:
            return None
        self._running = None
        if self._waiting is not None:
            following, self._waiting = self._waiting, None
            self._start(following)
        return outcome

    def _start(self, request: Request) -> None:
        self._running = request
        threading.Thread(target=self._work, args=(request,), daemon=True).start()

    def _work(self, request: Request) -> None:
        self._outcomes.put(attempt(self._evaluate, request))


def attempt(evaluate: Evaluate, request: Request) -> Outcome:
    """Run one evaluation; a failure becomes an outcome, because training continues without it."""
    start = time.perf_counter()
    results: tuple[EvalResult, ...] = ()
    error: str | None = None
    try:
        results = tuple(evaluate(request))
    except EvaluationCancelledError:
        error = "cancelled"
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
    return Outcome(request, results, error, time.perf_counter() - start)
