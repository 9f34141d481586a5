"""Read the observations of an episode, and decide whether one is valid for acting."""

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
"""Shortest time, in seconds, after which identical images mean a frozen camera: cameras may be slower than control."""
_AHEAD_S = 0.02
"""Seconds by which a time stamp may be ahead of the clock, for example if computed from a camera's clock."""
_ANOTHER_S = 10.0
"""Age of an observation, in seconds, from which its stamp may come from another clock."""


class Observer:
    """Reads a robot's observations.

    Args:
        robot: connected robot.
        period_s: control period.
        safety: settings of which observations are invalid.
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
        """The observation before the episode, whose keys and shapes later ones must have.

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
        """Use the first observation's pose as the initial one, until the next one agrees."""
        if self._last is not None and not self.poses.fault(self.pose, self._last, clock.now()):
            self.poses.pause()

    def next(self) -> tuple[Observation, str]:
        """Return the newest observation, and the reason why it must not be used for acting ('' if it may).

        If the robot could not observe, the previous observation is returned.

        Raises:
            RobotError: a camera is frozen, or the robot reports a failure.
        """
        before = self.first() if self._last is None else self._last
        try:
            seen = observed(self._robot)
            fault = self._changed(seen)
            pose = None if fault else pose_of(self._robot, seen)
        except DriverError as error:  # even after a single lost frame
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
        """Return the reason why the newest observation is too old for acting or has an unknown age, or ''.

        The age of one without a stamp counts from its arrival.
        """
        stamp_s = None if self._last is None else self._last.stamp_s
        age_s = clock.now() - (self._came_s if stamp_s is None else stamp_s)
        if math.isnan(age_s) or age_s < -_AHEAD_S:
            return "the observation's stamp is not from time.monotonic()"
        if age_s > _ANOTHER_S:
            return (
                f"the observation is more than {_ANOTHER_S:g} s old by its stamp: the driver "
                "hangs, or its stamps are not from time.monotonic()"
            )
        return "the observation is old" if age_s > self._max_age_s else ""

    def _changed(self, seen: Observation) -> str:
        """Describe keys or shapes that differ from those at the beginning."""
        now = _shapes(seen)
        for key in sorted(self._shapes.keys() | now.keys()):
            if self._shapes.get(key) != now.get(key):
                was, is_ = (str(found.get(key, "absent")) for found in (self._shapes, now))
                return f"the observation '{key}' was {was} at the beginning and is {is_}"
        for key, value in seen.values.items():
            if value.ndim == 3 and value.dtype != self._types[key]:  # 255 and 1 may both mean white
                return f"the image '{key}' was {self._types[key]} at the beginning and is {value.dtype}"
        return ""


def not_finite(observation: Observation, keys: tuple[str, ...]) -> str:
    """Describe a vector among the keys that is not finite, or return ''; without keys check all vectors."""
    values = observation.values
    for key in keys or values:
        if key in values and np.ndim(values[key]) <= 1 and not np.isfinite(values[key]).all():
            return f"observation '{key}' is not finite"
    return ""


def _shapes(observation: Observation) -> dict[str, tuple[int, ...]]:
    return {key: np.shape(value) for key, value in observation.values.items()}
