"""Bound on the age of the weights with which steps are collected, and the waiting time that it causes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from imitate.system import clock

WINDOW_S = 60.0
"""Seconds over which waiting is summed before it is judged."""
MUCH = 0.5
"""Share of the time that learning may wait for the bound without a warning."""


class StalenessBound:
    """Limits the updates made while workers act with earlier weights.

    Args:
        most: largest number of updates by which weights may lag, or None for no bound and no measurement.

    Attributes:
        seen: largest number of updates by which the weights of received steps lagged.
    """

    def __init__(self, most: int | None) -> None:
        self.most, self.seen = most, 0
        self._asked_at, self._allowed = 0, 0
        self._begun_s, self._waited_s = clock.now(), 0.0
        self._has_told = False

    def allowed(self, version: int, oldest: int) -> int | None:
        """Return the number of updates that may follow, or None if there is no limit.

        Args:
            version: number of updates so far.
            oldest: version of the oldest weights of steps in progress.
        """
        if self.most is None:
            return None
        self._asked_at, self._allowed = version, max(0, oldest + self.most - version)
        return self._allowed

    def is_used_up(self, version: int, out: Collection[int]) -> bool:
        """Return true if no update may follow until the steps in progress have been received.

        No more steps may be requested then: they would add to the waiting updates, so the updates per step would depend
            on timing and not on ``train.online.update_ratio``.

        Args:
            version: number of updates so far.
            out: versions of the weights of steps in progress.
        """
        return self.most is not None and bool(out) and 0 < version >= min(out) + self.most

    def came(self, version: int, steps_version: int) -> None:
        """Record steps that were taken with the weights of `steps_version`."""
        self.seen = max(self.seen, version - steps_version)

    @contextmanager
    def waiting(self, version: int) -> Iterator[None]:
        """Measure the body's duration as waiting time of learning, if no update is allowed."""
        begun_s = clock.now()
        yield
        if self.most is not None and 0 < version >= self._asked_at + self._allowed:
            self._waited_s += clock.now() - begun_s

    def advice(self) -> str | None:
        """Return a warning once if learning waited for much of the latest :data:`WINDOW_S`."""
        passed_s = clock.now() - self._begun_s
        if self.most is None or self._has_told or passed_s < WINDOW_S:
            return None
        share, self._waited_s, self._begun_s = self._waited_s / passed_s, 0.0, clock.now()
        if share <= MUCH:
            return None
        self._has_told = True
        return (
            f"train.online.max_staleness {self.most}: learning waited {share:.0%} of the last {passed_s:.0f} s for "
            "steps with newer weights: raise it, or lower train.online.collect_steps or push_every_s"
        )
