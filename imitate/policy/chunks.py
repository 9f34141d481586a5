"""Joining and execution of action chunks that arrive while the robot moves.

A prediction uses the observation of one control step and arrives some steps later. The first action of the predicted
chunk belongs to the step of the observation, so the chunk loses as many actions as the robot has executed since then
(fewer than the elapsed steps if the robot held still without a plan). The rest is joined to the previously planned
actions in one of these ways:

    replace   the new actions from now on
    blend     (1 - w_k) old_k + w_k new_k over the steps that both plan, w rising from 0 to 1
    fade      new_k + (1 - w_k) (old_0 - new_0): the jump between both is spread over some steps

This module needs only numpy; its objects may be used by one thread at a time.
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
    """Number of predicted chunks by outcome, and of control steps without a plan.

    Attributes:
        accepted: number of chunks with at least one action left to execute.
        outdated: number of chunks that arrived after all their control steps.
        older: number of chunks that arrived after a chunk from a later observation.
        empty: number of control steps without a planned action.
    """

    accepted: int = 0
    outdated: int = 0
    older: int = 0
    empty: int = 0


@dataclass(frozen=True)
class Ticket:
    """Time of an observation: number of the request, and number of actions executed before the observation."""

    number: int
    executed: int


class ChunkPlayer:
    """Joins chunks to one stream of actions.

    Args:
        join: how a chunk follows the previous one: ``replace``, ``blend`` or ``fade``, see the module's docstring.
        steps: control steps over which ``blend`` and ``fade`` reach the new chunk, at least 1.

    Raises:
        UserError: the join is unknown or ``steps`` is below 1.
    """

    def __init__(self, join: Join = "blend", steps: int = 4) -> None:
        if join not in get_args(Join):
            raise UserError(f"unknown join of chunks '{join}'; {nearest(join, get_args(Join))}")
        if steps < 1:
            raise UserError(
                f"the number of control steps for joining chunks is {steps}; it must be at least 1"
            )
        self.counts = ChunkCounts()
        self._join, self._steps = join, steps
        self.clear()

    def clear(self) -> None:
        """Drop the plan, at the beginning of an episode or after a person moved the robot.

        A chunk that was requested earlier is discarded when it arrives.
        """
        self._plan: Vector | None = None
        self._last: Vector | None = None
        self._executed = 0
        self._requests = getattr(self, "_requests", 0)
        self._newest = self._requests

    def request(self) -> Ticket:
        """Return the time of the current observation, from which a chunk will be predicted, for :meth:`accept`."""
        self._requests += 1
        return Ticket(self._requests, self._executed)

    @property
    def planned(self) -> int:
        """Number of planned actions from the current step on."""
        return 0 if self._plan is None else len(self._plan)

    def remaining(self) -> Vector | None:
        """Copy (n, A) of the planned actions from the current step on, or None if nothing is planned."""
        return None if self._plan is None or not len(self._plan) else self._plan.copy()

    def accept(self, chunk: ArrayLike, ticket: Ticket) -> bool:
        """Add a predicted chunk to the plan.

        Args:
            chunk: (K, A) actions, the first one for the control step of the observation.
            ticket: result of :meth:`request` at the time of the observation.

        Returns:
            False if the chunk was not used, because all its actions are outdated or a newer chunk has arrived.

        Raises:
            UserError: the chunk's shape is not (K, A), or an action is not finite.
        """
        actions = np.array(chunk, dtype=np.float64)
        if actions.ndim != 2 or not len(actions):
            raise UserError(f"a chunk has shape {actions.shape}; wanted (K, A) with K at least 1")
        if not np.isfinite(actions).all():
            raise UserError("a chunk contains NaN or inf; wanted finite actions")
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
        """Return the action (A,) of this control step; None if nothing is planned, and the robot must hold still."""
        if self._plan is None or not len(self._plan):
            self.counts.empty += 1
            return None
        self._last, self._plan = self._plan[0], self._plan[1:]
        self._executed += 1
        return self._last.copy()

    def _joined(self, fresh: Vector) -> Vector:
        """Return the new actions, joined to those planned for the same steps."""
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
    """Return (count, 1) weights that rise in equal steps from 1 / (count + 1) to count / (count + 1)."""
    return (np.arange(1.0, count + 1.0) / (count + 1.0))[:, None]


class DelayEstimate:
    """Expected delay of a prediction, in control steps, from the latest delays.

    Args:
        period_s: duration of a control step in seconds.
        window: number of latest predictions used, so that one slow prediction has no lasting effect.
        warm_up: number of first predictions that are ignored, because they are slower.
        quantile: quantile of the delays in the window that is expected, in (0, 1].
    """

    def __init__(
        self, period_s: float, window: int = 20, warm_up: int = 1, quantile: float = 0.95
    ) -> None:
        self._period, self._quantile = period_s, quantile
        self._ignore = warm_up
        self._seen: deque[float] = deque(maxlen=window)

    def add(self, seconds: float) -> None:
        """Record the time from an observation to the arrival of its chunk."""
        if self._ignore:
            self._ignore -= 1
        else:
            self._seen.append(seconds)

    @property
    def steps(self) -> int:
        """Expected delay of the next prediction in control steps; 0 before any measurement."""
        if not self._seen:
            return 0
        ordered = sorted(self._seen)
        place = math.ceil(self._quantile * len(ordered)) - 1
        return math.ceil(ordered[place] / self._period - 1e-9)
