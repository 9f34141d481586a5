"""Observations of an episode, and the reasons why one must not be acted on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from imitate.deploy.cameras import Cameras
from imitate.deploy.driver import DriverError, Vector, observed, pose_of
from imitate.deploy.measured import MeasuredPoses
from imitate.deploy.robot import Observation, Robot
from imitate.deploy.safety import Safety
from imitate.errors import RobotError
from imitate.system import clock

_FROZEN_S = 0.5
"""Shortest time after which identical images are those of a frozen camera: beside fast control cameras are slow."""
_AHEAD_S = 0.02
"""Time by which a stamp may be ahead of the clock, as one is that was computed from a camera's own."""
_ANOTHER_S = 10.0
"""Age of an observation from which on its stamp may be that of another clock."""


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
        self._cameras = Cameras(safety.frozen, 0.0 if robot.in_step else _FROZEN_S)
        self.poses = MeasuredPoses(robot.limits, period_s, safety.frozen_pose, robot.action_names)
        self._last: Observation | None = None
        self._came_s = 0.0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._types: dict[str, np.dtype[Any]] = {}
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
        self._shapes = _shapes(seen)
        self._types = {key: value.dtype for key, value in seen.values.items()}
        for key, told in self._robot.observation_shapes.items():
            found = self._shapes.get(key)
            if found != tuple(told):
                raise RobotError(
                    f"the robot was not moved: observe() gives '{key}' as {found or 'nothing'}, and "
                    f"{type(self._robot).__name__}.observation_shapes has {tuple(told)}: correct one of them"
                )
        self._last, self._came_s = seen, clock.now()
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
        fault = self._cameras.fault(seen, now) or self.poses.fault(pose, seen, now)
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
        if math.isnan(age_s) or age_s < -_AHEAD_S:
            return "the observation's stamp is none of time.monotonic()"
        if age_s > _ANOTHER_S:
            return (
                f"the observation is more than {_ANOTHER_S:g} s old by its stamp: the driver stands still, or its "
                "stamps are none of time.monotonic()"
            )
        return "the observation is old" if age_s > self._max_age_s else ""

    def _changed(self, seen: Observation) -> str:
        """The words for keys or shapes that are not those of the beginning."""
        now = _shapes(seen)
        for key in sorted(self._shapes.keys() | now.keys()):
            if self._shapes.get(key) != now.get(key):
                was, is_ = (str(found.get(key, "absent")) for found in (self._shapes, now))
                return f"the observation '{key}' was {was} at the beginning and is {is_}"
        for key, value in seen.values.items():
            if value.ndim == 3 and value.dtype != self._types[key]:  # 255 and 1 may both be white
                return f"the image '{key}' was {self._types[key]} at the beginning and is {value.dtype}"
        return ""


def not_finite(observation: Observation, keys: tuple[str, ...]) -> str:
    """The words for a vector among the keys that is not finite, else ''; all vectors where there are no keys."""
    values = observation.values
    for key in keys or values:
        if key in values and np.ndim(values[key]) <= 1 and not np.isfinite(values[key]).all():
            return f"observation '{key}' is not finite"
    return ""


def _shapes(observation: Observation) -> dict[str, tuple[int, ...]]:
    return {key: np.shape(value) for key, value in observation.values.items()}
