"""The one rule for measured poses: which of them are observations, and which a fault of the sensor.

A pose is no observation where it is beyond the limits of the actions by more than a margin, further from the last
measured pose than three times the limit of speed allows, or is bit-identical for several steps in which the commands
ask for clear motion, or in which one of its numbers, which has shown a sensor's noise before, shows none. These are
none: an object in the gripper, contact, a robot that is driven back or guided by hand.
"""

from __future__ import annotations

from collections.abc import Sequence

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
_NOISY = 10
"""Successive readings, each of them new, by which a number at rest shows that its sensor has noise ..."""
_REST, _REVERSALS = 0.005, 3
"""... within this part of its range, while their change reverses so many times. An encoder that flickers between two
of its ticks has no new readings, and an arm that comes to rest does not reverse, or its changes get smaller."""


class MeasuredPoses:
    """Looks at each measured pose of an episode.

    Args:
        limits: of the robot.
        period_s: control period.
        frozen: steps of clear motion of the commands with a bit-identical pose that are too many; 0: any number is
            allowed.
        names: of the numbers of a pose, for the words; None: they are called by their places.
    """

    def __init__(
        self,
        limits: ActionLimits,
        period_s: float,
        frozen: int,
        names: Sequence[str] | None = None,
    ) -> None:
        self._limits, self._period_s = limits, period_s
        self._names = names if names is not None and len(names) == limits.size else None
        self._told: dict[tuple[str, tuple[int, ...]], str] = {}
        self._noise = Noise(limits, frozen)
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
        outside = self._limits.far_outside(pose)
        if outside.any():
            return self._words("is far outside of the limits", outside, "at", pose)
        trusted = self._trusted
        if self._has_jumped(pose, now_s):
            return self._words("has jumped", self._gone(pose, trusted), "to", pose)
        self._trusted, self._blind_s, self._is_free = pose, 0.0, False
        silent = self._noise.silent(pose)
        if silent.any():
            return self._words("repeats itself without a sensor's noise", silent, "at", pose)
        if self._stillness.is_frozen(pose, seen):
            return "the measured pose stands still while commands move it"
        return ""

    def _words(self, fault: str, dims: NDArray[np.bool_], word: str, pose: Vector) -> str:
        """The words for a fault of some numbers, with their first readings: the same for the same numbers."""
        places = tuple(np.flatnonzero(dims).tolist())
        if (fault, places) not in self._told:
            names = [
                f"number {place}" if self._names is None else self._names[place] for place in places
            ]
            shown = ", ".join(
                f"{name} {word} {pose[place]:.4g}"
                for name, place in zip(names, places, strict=True)
            )
            self._told[fault, places] = f"the measured pose {fault}" + (
                f": {shown}" if shown else ""
            )
        return self._told[fault, places]

    def _gone(self, pose: Vector, trusted: Vector | None) -> NDArray[np.bool_]:
        """(A,) True where a pose is too far from the trusted one for a single step."""
        if self._reach is None or trusted is None:
            return np.zeros(len(pose), dtype=bool)
        found: NDArray[np.bool_] = np.abs(pose - trusted) > self._reach
        return found

    def _has_jumped(self, pose: Vector, now_s: float) -> bool:
        """Look how far it is from the last trusted pose; after a gap the reading before has to agree.

        A gap after a reading that has jumped does not explain that it had jumped before.
        """
        first, trusted, before = self._last is None, self._trusted, self._last
        passed_s = max(now_s - self._seen_s, self._period_s)
        self._last, self._seen_s = pose, now_s
        if self._reach is None or trusted is None:
            return self._reach is not None and not (first or self._near(before, pose, passed_s))
        if before is trusted:
            self._blind_s = passed_s
        if self._near(trusted, pose, self._period_s if before is not trusted else passed_s):
            return False
        gone = np.abs(pose - trusted)
        is_gap = self._blind_s >= _GLANCE * self._period_s
        reach = self._reach * (self._blind_s / self._period_s)
        may_be = self._is_free or is_gap and bool((gone <= reach).all())
        return not (may_be and self._near(before, pose, passed_s))

    def _near(self, before: Vector | None, pose: Vector, passed_s: float) -> bool:
        assert self._reach is not None and before is not None
        periods = min(passed_s / self._period_s, _GLANCE)
        return bool((np.abs(pose - before) <= self._reach * periods).all())


class Noise:
    """Notices a number whose sensor has noise, and which repeats its last reading.

    Args:
        limits: of the robot.
        frozen: repetitions that are too many; 0: any number is allowed.
    """

    def __init__(self, limits: ActionLimits, frozen: int) -> None:
        self._frozen, self._rest = frozen, _REST * limits.ranges()
        self._readings: list[Vector] = []
        self._is_noisy = np.zeros(limits.size, dtype=bool)
        self._repeated = np.zeros(limits.size, dtype=int)

    def silent(self, pose: Vector) -> NDArray[np.bool_]:
        """(A,) Return True where this pose repeats a reading for too long that had noise before."""
        if self._readings:
            self._repeated = np.where(pose == self._readings[-1], self._repeated + 1, 0)
        self._readings = [*self._readings, pose][-_NOISY:]
        if len(self._readings) == _NOISY:
            self._is_noisy |= _has_noise(np.array(self._readings), self._rest)
        found: NDArray[np.bool_] = self._is_noisy & (self._repeated >= self._frozen)
        return found & bool(self._frozen)


def _has_noise(readings: NDArray[np.float64], rest: Vector) -> NDArray[np.bool_]:
    """(A,) Return True where successive readings (T, A) are those of a number at rest whose sensor has noise."""
    changes = np.diff(readings, axis=0)
    reversals = (changes[1:] * changes[:-1] < 0).sum(axis=0)
    sizes = np.abs(changes)
    lasts = sizes[len(sizes) // 2 :].max(axis=0) >= 0.5 * sizes.max(axis=0)
    is_new = (np.diff(np.sort(readings, axis=0), axis=0) > 0).all(axis=0)
    found: NDArray[np.bool_] = (
        is_new & lasts & (reversals >= _REVERSALS) & (np.ptp(readings, axis=0) <= rest)
    )
    return found


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
