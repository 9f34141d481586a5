"""Observations of an episode, and the reasons why one must not be acted on."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate import clock
from imitate.deploy.robot import Observation, Robot, RobotError
from imitate.errors import UserError


class Observer:
    """Asks a robot for its observations.

    Args:
        robot: connected.
        max_age_s: an observation older than this is not acted on.
        frozen: steps with identical images after which the camera counts as frozen; 0: not checked.
    """

    def __init__(self, robot: Robot, max_age_s: float, frozen: int) -> None:
        self._robot, self._max_age_s = robot, max_age_s
        self._cameras = _Cameras(frozen)
        self._last: Observation | None = None
        self._came_s = 0.0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.unstamped = False
        """True where the robot does not tell when it observed, so that freshness is not checked."""

    def first(self) -> Observation:
        """The observation before the episode, whose keys and shapes the later ones have to have.

        Raises:
            RobotError: the robot could not observe.
        """
        try:
            seen = observed(self._robot)
        except (RobotError, UserError):
            raise
        except Exception as error:
            raise RobotError(f"the robot was not moved: {_words(error)}") from error
        self._last, self._shapes = seen, _shapes(seen)
        return seen

    def next(self) -> tuple[Observation, str]:
        """The newest observation, and why it must not be acted on: '' where it may be.

        Where the robot could not observe it is the observation before.

        Raises:
            RobotError: a camera is frozen, or the robot says that it failed.
        """
        before = self.first() if self._last is None else self._last
        try:
            seen = observed(self._robot)
        except (RobotError, UserError):
            raise
        except Exception as error:  # a driver may raise anything, also for a single lost frame
            return before, _words(error)
        self._last, self._came_s = seen, clock.now()
        self.unstamped |= seen.stamp_s is None
        fault = self._changed(seen)
        if fault:
            self._last = before
            return before, fault
        self._cameras.check(seen)
        return seen, self.fault_of_age()

    def fault_of_age(self) -> str:
        """The reason why the newest observation is too old to be acted on now, or why its age is unknown, else ''.

        One without a stamp counts from when it came.
        """
        stamp_s = None if self._last is None else self._last.stamp_s
        age_s = clock.now() - (self._came_s if stamp_s is None else stamp_s)
        if math.isnan(age_s) or age_s < -self._max_age_s:
            return f"the observation's stamp {stamp_s} is none of time.monotonic()"
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
    """

    def __init__(self, frozen: int) -> None:
        self._frozen = frozen
        self._last: dict[str, NDArray[Any]] = {}
        self._repeated: Counter[str] = Counter()

    def check(self, observation: Observation) -> None:
        """Raise RobotError where a picture has not changed for too long."""
        for key, value in observation.values.items():
            if not self._frozen or getattr(value, "ndim", 0) != 3 or value.dtype != np.uint8:
                continue
            last = self._last.get(key)
            same = last is not None and np.array_equal(last, value)
            self._repeated[key] = self._repeated[key] + 1 if same else 0
            if self._repeated[key] >= self._frozen:
                raise RobotError(
                    f"the image '{key}' has been the same for {self._repeated[key]} steps, so the camera is frozen; "
                    "the robot was stopped"
                )
            if not same:
                self._last[key] = np.array(value)


def observed(robot: Robot) -> Observation:
    """The robot's observation, also of a robot that gives a plain mapping, without a stamp."""
    seen: Any = robot.observe()
    return seen if isinstance(seen, Observation) else Observation(seen)


def finite(observation: Observation, keys: tuple[str, ...]) -> bool:
    """Return True if the vectors among the keys are finite; all vectors where there are no keys."""
    values = observation.values
    vectors = [values[key] for key in keys or values if key in values and np.ndim(values[key]) <= 1]
    return all(bool(np.isfinite(vector).all()) for vector in vectors)


def _shapes(observation: Observation) -> dict[str, tuple[int, ...]]:
    return {key: np.shape(value) for key, value in observation.values.items()}


def _words(error: Exception) -> str:
    return f"observe() failed: {type(error).__name__}: {error}"
