"""A robot for benchmarks that does not move and records each command with its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.robot.limits import ActionLimits
from imitate.deploy.robot.robot import Observation, Robot


class StandingRobot(Robot):
    """Robot that accepts every action, and records the time and the name of each call.

    Args:
        shapes: shapes of its observations by key: vectors, or images (H, W, 3).
        size: number of values in an action.

    Attributes:
        calls: (time.monotonic(), name of the call) in order.
        faults: functions to run in a call, by its name.
        frozen: true to repeat the same images.
        nan: true to return vectors that are not finite.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], size: int) -> None:
        self.observation_shapes = dict(shapes)
        self.limits = ActionLimits(low=[-1.0] * size, high=[1.0] * size)
        self.calls: list[tuple[float, str]] = []
        self.faults: dict[str, Callable[[], None]] = {}
        self.frozen = self.nan = False
        self._tick = 0

    def _note(self, name: str) -> None:
        self.calls.append((time.monotonic(), name))
        if name in self.faults:
            self.faults[name]()

    def observe(self) -> Observation:
        """Return vectors of zeros, and images whose brightness counts the calls."""
        self._note("observe")
        self._tick += not self.frozen
        values = {
            key: np.full(shape, self._tick % 251, np.uint8)
            if len(shape) == 3
            else np.full(shape, np.nan if self.nan else 0.0, np.float32)
            for key, shape in self.observation_shapes.items()
        }
        return Observation(values, time.monotonic())

    def send(self, action: NDArray[np.float64]) -> None:
        """Record the call."""
        self._note("send")

    def hold(self) -> None:
        """Record the call."""
        self._note("hold")

    def stop(self) -> None:
        """Record the call."""
        self._note("stop")

    def times(self, name: str) -> list[float]:
        """Return the times at which a call began."""
        return [when for when, call in self.calls if call == name]
