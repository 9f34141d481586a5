"""Observations of an episode, and the reasons why one must not be acted on."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.driver import DriverError, Vector, observed, pose_of
from imitate.deploy.measured import MeasuredPoses
from imitate.deploy.robot import Observation, Robot, RobotError
from imitate.deploy.safety import Safety
from imitate.system import clock

_FROZEN_S = 0.5
"""Shortest time after which identical images are those of a frozen camera: beside fast control cameras are slow."""


class Observer:
    """Asks a robot for its observations.

    Args:
        robot: connected.
        period_s: control period.
        safety: which observations are not acted on.
    """

    def __init__(self, robot: Robot, period_s: float, safety: Safety) -> None:
        self._robot = robot
        self._max_age_s = safety.oldest_s(period_s, robot)
        self._cameras = _Cameras(safety.frozen, 0.0 if robot.in_step else _FROZEN_S)
        self.poses = MeasuredPoses(robot.limits, period_s, safety.frozen_pose)
        self._last: Observation | None = None
        self._came_s = 0.0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.pose: Vector | None = None
        """(A,) The action that keeps the pose of the newest usable observation; None where the robot does not tell."""
        self.unstamped = False
        """True where the robot does not tell when it observed, so that freshness is not checked."""

    def first(self) -> Observation:
        """The observation before the episode, whose keys and shapes the later ones have to have.

        Raises:
            RobotError: the robot could not observe.
        """
        try:
            seen = observed(self._robot)
            self.pose = pose_of(self._robot, seen)
        except DriverError as error:
            raise RobotError(f"the robot was not moved: {error}") from error
        self._last, self._shapes, self._came_s = seen, _shapes(seen), clock.now()
        return seen

    def begin(self) -> None:
        """Take the first observation's pose for that from which the robot begins, until the next one agrees."""
        if self._last is not None and not self.poses.fault(self.pose, self._last, clock.now()):
            self.poses.pause()

    def next(self) -> tuple[Observation, str]:
        """The newest observation, and why it must not be acted on: '' where it may be.

        Where the robot could not observe it is the observation before.

        Raises:
            RobotError: a camera is frozen, or the robot says that it failed.
        """
        before = self.first() if self._last is None else self._last
        try:
            seen = observed(self._robot)
            fault = self._changed(seen)
            pose = None if fault else pose_of(self._robot, seen)
        except DriverError as error:  # also for a single lost frame
            return before, str(error)
        now = clock.now()
        self.unstamped |= seen.stamp_s is None
        if fault:
            return before, fault
        self._cameras.check(seen, now)
        fault = self.poses.fault(pose, seen, now)
        if fault:
            return before, fault
        self._last, self._came_s, self.pose = seen, now, pose
        return seen, self.fault_of_age()

    def fault_of_age(self) -> str:
        """The reason why the newest observation is too old to be acted on now, or why its age is unknown, else ''.

        One without a stamp counts from when it came.
        """
        stamp_s = None if self._last is None else self._last.stamp_s
        age_s = clock.now() - (self._came_s if stamp_s is None else stamp_s)
        if math.isnan(age_s) or age_s < -self._max_age_s:
            return "the observation's stamp is none of time.monotonic()"
        return "the observation is old" if age_s > self._max_age_s else ""

    def _changed(self, seen: Observation) -> str:
        """The words for keys or shapes that are not those of the beginning."""
        now = _shapes(seen)
        for key in sorted(self._shapes.keys() | now.keys()):
            if self._shapes.get(key) != now.get(key):
                was, is_ = (str(found.get(key, "absent")) for found in (self._shapes, now))
                return f"the observation '{key}' was {was} at the beginning and is {is_}"
        return ""


class _Cameras:
    """Notices a camera that gives the same picture again and again.

    Args:
        frozen: so many repetitions are too many; 0: any number is allowed.
        least_s: seconds that they last at least.
    """

    def __init__(self, frozen: int, least_s: float) -> None:
        self._frozen, self._least_s = frozen, least_s
        self._last: dict[str, NDArray[Any]] = {}
        self._since_s: dict[str, float] = {}
        self._repeated: Counter[str] = Counter()

    def check(self, observation: Observation, now_s: float) -> None:
        """Raise RobotError where a picture has not changed for too long."""
        for key, value in observation.values.items():
            if not self._frozen or not _is_picture(value):
                continue
            last = self._last.get(key)
            same = last is not None and np.array_equal(last, value)
            self._repeated[key] = self._repeated[key] + 1 if same else 0
            lasted_s = now_s - self._since_s.setdefault(key, now_s)
            if self._repeated[key] >= self._frozen and lasted_s >= self._least_s - 1e-6:
                raise RobotError(
                    f"the image '{key}' has been the same for {self._repeated[key]} steps, so the camera is frozen; "
                    "the robot was stopped"
                )
            if not same:
                self._last[key], self._since_s[key] = np.array(value), now_s


def _is_picture(value: Any) -> bool:
    """Return True for an image of any depth or colours, of integers or of floats."""
    is_array = getattr(value, "ndim", 0) == 3
    return is_array and (value.dtype == np.uint8 or value.shape[-1] == 3)


def finite(observation: Observation, keys: tuple[str, ...]) -> bool:
    """Return True if the vectors among the keys are finite; all vectors where there are no keys."""
    values = observation.values
    vectors = [values[key] for key in keys or values if key in values and np.ndim(values[key]) <= 1]
    return all(bool(np.isfinite(vector).all()) for vector in vectors)


def _shapes(observation: Observation) -> dict[str, tuple[int, ...]]:
    return {key: np.shape(value) for key, value in observation.values.items()}
