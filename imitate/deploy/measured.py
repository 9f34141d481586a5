"""The one rule for measured poses: which of them are observations, and which a fault of the sensor.

A pose is no observation where it is beyond the limits of the actions by more than a margin, further from the last
measured pose than three times the limit of speed allows, or is bit-identical for several steps in which the commands
ask for clear motion. These are none: an object in the gripper, contact, a robot that is driven back or guided by hand.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.limits import ActionLimits
from imitate.deploy.robot import Observation

Vector = NDArray[np.float64]

_FASTER = 3.0
"""A measured pose may move so many times as fast as commands may."""
_GLANCE = 2.0
"""Periods after which a reading counts as one after a gap, which another one has to confirm."""
_MOVES, _CLEAR = 0.002, 0.02
"""Parts of a dimension's range that a command has to move by in a step, and in all, to ask for motion."""


class MeasuredPoses:
    """Looks at each measured pose of an episode.

    Args:
        limits: of the robot.
        period_s: control period.
        frozen: steps of clear motion of the commands with a bit-identical pose that are too many; 0: any number is
            allowed.
    """

    def __init__(self, limits: ActionLimits, period_s: float, frozen: int) -> None:
        self._limits, self._period_s = limits, period_s
        self._reach = _reach(limits, period_s)
        self._stillness = Stillness(limits, frozen)
        self._trusted: Vector | None = None
        self._last: Vector | None = None
        self._seen_s, self._blind_s, self._is_free = 0.0, 0.0, True

    def pause(self) -> None:
        """Let the robot be moved by anybody: until the next pose that is trusted two readings have to agree."""
        self._is_free = True

    def commanded(self, action: Vector) -> None:
        """Take note of an action (A,) that was sent."""
        self._stillness.commanded(action)

    def fault(self, pose: Vector | None, seen: Observation, now_s: float) -> str:
        """The reason why a measured pose is no observation, else ''.

        Args:
            pose: (A,) finite; None where the robot does not tell it.
            seen: the observation of the pose.
            now_s: time of :mod:`imitate.system.clock` at which it came.
        """
        if pose is None:
            return "" if self._trusted is None else "the robot does not tell its pose any more"
        if self._limits.is_far_outside(pose):
            return "the measured pose is far outside of the limits"
        if self._has_jumped(pose, now_s):
            return "the measured pose has jumped"
        self._trusted, self._blind_s, self._is_free = pose, 0.0, False
        if self._stillness.is_frozen(pose, seen):
            return "the measured pose stands still while commands move it"
        return ""

    def _has_jumped(self, pose: Vector, now_s: float) -> bool:
        """Look how far it is from the last trusted pose; after a gap the reading before has to agree."""
        first, trusted = self._last is None, self._trusted
        before, passed_s = self._last, max(now_s - self._seen_s, self._period_s)
        self._last, self._seen_s = pose, now_s
        if self._reach is None or trusted is None:
            return self._reach is not None and not (first or self._near(before, pose, passed_s))
        self._blind_s += passed_s - self._period_s
        if self._near(trusted, pose, passed_s):
            return False
        gone = np.abs(pose - trusted)
        may_be = self._is_free or bool(
            (gone <= self._reach * (1.0 + self._blind_s / self._period_s)).all()
        )
        return not (may_be and self._near(before, pose, passed_s))

    def _near(self, before: Vector | None, pose: Vector, passed_s: float) -> bool:
        assert self._reach is not None and before is not None
        periods = min(passed_s / self._period_s, _GLANCE)
        return bool((np.abs(pose - before) <= self._reach * periods).all())


class Stillness:
    """Notices a sensor that repeats its last reading.

    A single number that does not follow may be held by an object or by contact. So two of them have to stand still
    that were to move, or one that was to move to both sides of its place. Numbers of a pose that are no measurement (0
    of relative actions, the last command of a gripper) are left out; where none is left the observation's vectors have
    to be bit-identical, which have moved before.

    Args:
        limits: of the robot.
        frozen: see :class:`MeasuredPoses`.
    """

    def __init__(self, limits: ActionLimits, frozen: int) -> None:
        self._frozen = frozen
        self._range = limits.ranges()
        self._is_measured = np.zeros(limits.size, dtype=bool)
        self._is_told = np.zeros(limits.size, dtype=bool)
        self._pose: Vector | None = None
        self._vectors: dict[str, bytes] = {}
        self._is_alive = False
        self._sent: Vector | None = None
        self._since_pose, self._since_vectors = _Wishes(), _Wishes()

    def commanded(self, action: Vector) -> None:
        """Take note of an action (A,) that was sent."""
        change = np.zeros_like(action) if self._sent is None else action - self._sent
        for wishes, way in ((self._since_pose, change), (self._since_vectors, action)):
            wishes.add(action, bool((np.abs(way) >= _MOVES * self._range).any()))
        self._sent = action

    def is_frozen(self, pose: Vector, seen: Observation) -> bool:
        """Return True if this pose (A,) and the observation with it repeat what was there before for too long."""
        if not self._frozen:
            return False
        vectors = {
            key: np.asarray(value).tobytes()
            for key, value in seen.values.items()
            if np.ndim(value) == 1 and np.asarray(value).dtype.kind == "f"
        }
        before, self._pose = self._pose, pose
        known = self._is_measured
        self._is_told = self._is_told | (pose != 0.0)
        if self._sent is not None:
            self._is_measured = known | (pose != 0.0) & (pose != self._sent)
        measured = self._is_measured
        if (measured != known).any() or before is None or (pose != before)[measured].any():
            self._since_pose = _Wishes()
        if vectors != self._vectors:
            self._is_alive |= bool(self._vectors)
            self._vectors, self._since_vectors = vectors, _Wishes()
        if measured.any():
            asked = self._since_pose.asked(pose, self._range) & measured
            crossed = self._since_pose.crossed(pose, self._range) & measured
            return self._since_pose.count >= self._frozen and self._are_too_many(asked, crossed)
        zero = np.zeros_like(pose)
        asked = self._since_vectors.reached(self._range)
        crossed = self._since_vectors.crossed(zero, self._range)
        is_relative = not self._is_told[: max(len(pose) - 1, 1)].any()
        return (
            is_relative
            and self._is_alive
            and bool(vectors)
            and self._since_vectors.count >= self._frozen
            and self._are_too_many(asked, crossed)
        )

    @staticmethod
    def _are_too_many(asked: NDArray[np.bool_], crossed: NDArray[np.bool_]) -> bool:
        return int(asked.sum()) >= 2 or bool(crossed.any())


class _Wishes:
    """Commands since a reading changed."""

    def __init__(self) -> None:
        self.count = 0
        self._low: Vector | None = None
        self._high: Vector | None = None

    def add(self, action: Vector, is_moving: bool) -> None:
        self.count += is_moving
        self._low = action if self._low is None else np.minimum(self._low, action)
        self._high = action if self._high is None else np.maximum(self._high, action)

    def asked(self, pose: Vector, size: Vector) -> NDArray[np.bool_]:
        """(A,) Return True where the commands have moved clearly."""
        if self._low is None or self._high is None:
            return np.zeros(len(pose), dtype=bool)
        found: NDArray[np.bool_] = self._high - self._low >= _CLEAR * size
        return found

    def reached(self, size: Vector) -> NDArray[np.bool_]:
        """(A,) Return True where relative commands were clearly not 0."""
        if self._low is None or self._high is None:
            return np.zeros(len(size), dtype=bool)
        found: NDArray[np.bool_] = np.maximum(self._high, -self._low) >= _CLEAR * size
        return found

    def crossed(self, pose: Vector, size: Vector) -> NDArray[np.bool_]:
        """(A,) Return True where the commands were clearly on both sides of a place."""
        if self._low is None or self._high is None:
            return np.zeros(len(pose), dtype=bool)
        below, above = self._low <= pose - _CLEAR * size, self._high >= pose + _CLEAR * size
        found: NDArray[np.bool_] = below & above
        return found


def _reach(limits: ActionLimits, period_s: float) -> Vector | None:
    """(A,) How far a measured pose may move in a control period; None where nothing limits the speed."""
    ways = [] if limits.step is None else [np.asarray(limits.step)]
    ways += [] if limits.speed is None else [np.asarray(limits.speed) * period_s]
    return _FASTER * np.minimum.reduce(ways) if ways else None
