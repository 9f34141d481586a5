"""Bound on the age of the weights behind collected steps, and its price in time."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from imitate.system import clock

WINDOW_S = 60.0
"""Time over which waiting is summed before it is judged."""
MUCH = 0.5
"""Share of the time that learning may wait for the bound without a word."""


class StalenessBound:
    """Updates that may be made while workers act with earlier weights.

    Args:
        most: updates by which weights may lag; None: no bound, and nothing is measured.

    Attributes:
        seen: the most updates by which the weights behind steps lagged when these came.
    """

    def __init__(self, most: int | None) -> None:
        self.most, self.seen = most, 0
        self._asked_at, self._allowed = 0, 0
        self._begun_s, self._waited_s = clock.now(), 0.0
        self._has_told = False

    def allowed(self, version: int, oldest: int) -> int | None:
        """Return the number of updates that may follow, None for any number.

        Args:
            version: updates so far.
            oldest: version of the oldest weights that steps may still come from.
        """
        if self.most is None:
            return None
        self._asked_at, self._allowed = version, max(0, oldest + self.most - version)
        return self._allowed

    def is_used_up(self, version: int, out: Collection[int]) -> bool:
        """Return true where no update may follow until steps that are under way have come.

        Nobody is to be asked for more steps then: each step would add to the updates that wait, so that the updates per
        step would depend on the clock and not on ``train.online.update_ratio``.

        Args:
            version: updates so far.
            out: versions of the weights that steps may still come from.
        """
        return self.most is not None and bool(out) and 0 < version >= min(out) + self.most

    def came(self, version: int, steps_version: int) -> None:
        """Take note of steps that were taken with weights of `steps_version`."""
        self.seen = max(self.seen, version - steps_version)

    @contextmanager
    def waiting(self, version: int) -> Iterator[None]:
        """Measure the body as time in which learning waits, where it has used up what it was allowed."""
        begun_s = clock.now()
        yield
        if self.most is not None and 0 < version >= self._asked_at + self._allowed:
            self._waited_s += clock.now() - begun_s

    def advice(self) -> str | None:
        """Return a warning, once, where learning waited for most of the latest :data:`WINDOW_S`."""
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
