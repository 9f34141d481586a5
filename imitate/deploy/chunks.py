"""Playback of action chunks that arrive while the robot moves.

A prediction sees the observation of one control step and arrives some steps later. Its first action belongs to the
step of the observation; so many of its actions are dropped as the robot has really executed since then, which is fewer
than the elapsed steps where the robot had nothing to do and held still. What is left follows the actions that were
planned before, by one of these joins:

    replace   the new actions from now on
    blend     (1 - w_k) old_k + w_k new_k over the steps that both plan, w rising from 0 to 1
    fade      new_k + (1 - w_k) (old_0 - new_0): the jump between both is spread over some steps

Everything here is numpy and belongs to one thread.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate.errors import UserError, nearest

Vector = NDArray[np.float64]
Join = Literal["replace", "blend", "fade"]


@dataclass
class ChunkCounts:
    """Number of chunks by what became of them.

    Attributes:
        accepted: chunks of which something was left to execute.
        outdated: chunks whose actions were all over when they arrived.
        older: chunks that arrived after one of a later observation.
        empty: control steps without a planned action.
    """

    accepted: int = 0
    outdated: int = 0
    older: int = 0
    empty: int = 0


@dataclass(frozen=True)
class Ticket:
    """The moment of an observation: the number of it and of the actions that had been executed before."""

    number: int
    executed: int


class ChunkPlayer:
    """Joins chunks to one stream of actions.

    Args:
        join: how a chunk follows the one before, see the module.
        steps: control steps over which ``blend`` and ``fade`` reach the new chunk, at least 1.

    Raises:
        UserError: the join is unknown or ``steps`` is below 1.
    """

    def __init__(self, join: Join = "blend", steps: int = 4) -> None:
        if join not in get_args(Join):
            raise UserError(f"join of chunks: unknown '{join}'; {nearest(join, get_args(Join))}")
        if steps < 1:
            raise UserError(f"steps of the join: got {steps}; wanted at least 1")
        self.counts = ChunkCounts()
        self._join, self._steps = join, steps
        self.clear()

    def clear(self) -> None:
        """Forget plan and history: a new episode begins, or somebody else has moved the robot.

        A chunk that was requested before is refused when it arrives.
        """
        self._plan: Vector | None = None
        self._last: Vector | None = None
        self._executed = 0
        self._requests = getattr(self, "_requests", 0)
        self._newest = self._requests

    def request(self) -> Ticket:
        """Note the moment of an observation from which a chunk is predicted."""
        self._requests += 1
        return Ticket(self._requests, self._executed)

    @property
    def planned(self) -> int:
        """Actions that are planned from the present step on."""
        return 0 if self._plan is None else len(self._plan)

    def remaining(self) -> Vector | None:
        """A copy (n, A) of the actions that are planned from the present step on; None if there are none."""
        return None if self._plan is None or not len(self._plan) else self._plan.copy()

    def accept(self, chunk: ArrayLike, ticket: Ticket) -> bool:
        """Take a prediction.

        Args:
            chunk: (K, A), the first action belongs to the observation of ``ticket``.
            ticket: of :meth:`request`, at the time of the observation.

        Returns:
            False where nothing was taken: its actions are over, or a newer one is there already.

        Raises:
            UserError: it is no (K, A) or is not finite.
        """
        actions = np.array(chunk, dtype=np.float64)
        if actions.ndim != 2 or not len(actions):
            raise UserError(f"a chunk has shape {actions.shape}; wanted (K, A) with K at least 1")
        if not np.isfinite(actions).all():
            raise UserError("a chunk is not finite")
        if ticket.number <= self._newest:
            self.counts.older += 1
            return False
        fresh = actions[self._executed - ticket.executed :]
        if not len(fresh):
            self.counts.outdated += 1
            return False
        self._newest = ticket.number
        self._plan = self._joined(fresh)
        self.counts.accepted += 1
        return True

    def next(self) -> Vector | None:
        """The action (A,) of this control step; None where none is planned, then the robot has to hold."""
        if self._plan is None or not len(self._plan):
            self.counts.empty += 1
            return None
        self._last, self._plan = self._plan[0], self._plan[1:]
        self._executed += 1
        return self._last.copy()

    def _joined(self, fresh: Vector) -> Vector:
        """The new actions, joined to those that were planned for the same steps."""
        old = self._plan if self._plan is not None else fresh[:0]
        if self._join == "replace":
            return fresh
        if self._join == "blend":
            count = min(len(old), len(fresh), self._steps)
            weight = _rising(count)
            fresh[:count] = (1.0 - weight) * old[:count] + weight * fresh[:count]
            return fresh
        present = old[0] if len(old) else self._last
        if present is not None:
            count = min(len(fresh), self._steps)
            fresh[:count] += (1.0 - _rising(count)) * (present - fresh[0])
        return fresh


def _rising(count: int) -> Vector:
    """(count, 1) weights that rise in equal steps from 1 / (count + 1) to count / (count + 1)."""
    return (np.arange(1.0, count + 1.0) / (count + 1.0))[:, None]


class DelayEstimate:
    """Expected delay of a prediction, in control steps, from the delays seen last.

    Args:
        period_s: seconds of a control step.
        window: predictions that count; older ones are forgotten, so that one slow prediction does not last.
        warm_up: first predictions that do not count, since they are slower than all that follow.
        quantile: of the window, in (0, 1].
    """

    def __init__(
        self, period_s: float, window: int = 20, warm_up: int = 1, quantile: float = 0.95
    ) -> None:
        self._period, self._quantile = period_s, quantile
        self._ignore = warm_up
        self._seen: deque[float] = deque(maxlen=window)

    def add(self, seconds: float) -> None:
        """Note the time from an observation to the arrival of its chunk."""
        if self._ignore:
            self._ignore -= 1
        else:
            self._seen.append(seconds)

    @property
    def steps(self) -> int:
        """Control steps that the next prediction will take; 0 before anything is known."""
        if not self._seen:
            return 0
        ordered = sorted(self._seen)
        place = max(0, math.ceil(self._quantile * len(ordered)) - 1)
        return math.ceil(ordered[place] / self._period - 1e-9)
