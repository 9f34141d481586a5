"""Actions from pushes: the part that keyboards, gamepads and SpaceMice have in common."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate import clock
from imitate.deploy.robot import Observation, Robot
from imitate.errors import UserError

Vector = NDArray[np.float64]
Gripper = bool | Literal["inverted"]
Mode = Literal["relative", "absolute"]


class Pushes:
    """Turns pushes into actions of a robot.

    Args:
        scale: part of the action's range that a full push gives, in (0, 1].
        gripper: True: the last number of an action opens (lowest) and closes (highest) a gripper; ``inverted``: the
            highest opens; False: there is no gripper.
        mode: ``relative``: an action is a change, and zero keeps the pose; ``absolute``: an action is a pose, and a
            full push moves it by ``scale`` of the range per second.

    Raises:
        UserError: a setting makes no sense.
    """

    def __init__(self, scale: float, gripper: Gripper, mode: Mode) -> None:
        if not 0 < scale <= 1:
            raise UserError(f"scale is {scale}; wanted a number above 0, at most 1")
        if mode not in ("relative", "absolute"):
            raise UserError(f"mode is '{mode}'; wanted relative or absolute")
        if gripper not in (True, False, "inverted"):
            raise UserError(f"gripper is '{gripper}'; wanted true, false or inverted")
        self._scale, self._mode = scale, mode
        self.has_gripper, self._inverted = bool(gripper), gripper == "inverted"
        self._grip: float | None = None
        self._ticked, self._passed_s = clock.now(), 0.0

    def connect(self, robot: Robot) -> None:
        """Take the range of the actions from a robot.

        Raises:
            UserError: the range has no end, so that no part of it can be taken.
        """
        self._robot = robot
        self._low, self._high = map(np.asarray, (robot.limits.low, robot.limits.high))
        if not (np.isfinite(self._low).all() and np.isfinite(self._high).all()):
            raise UserError(
                "the robot's limits are infinite, and a push is a part of them: give finite low and high (--limits)"
            )
        self.size = len(self._low) - self.has_gripper
        """Numbers of an action beside the gripper."""
        if self.has_gripper:
            ends = (self._high[-1], self._low[-1])
            self._open, self._closed = ends if self._inverted else ends[::-1]

    def tick(self) -> None:
        """Measure the time since the last control step; call it once in each."""
        now = clock.now()
        self._passed_s, self._ticked = min(now - self._ticked, 0.2), now

    def begin(self) -> None:
        """Begin an episode with an open gripper."""
        self._grip = None

    def grip(self, how: str) -> None:
        """Change the command of the gripper: ``open``, ``close`` or ``toggle``."""
        if not self.has_gripper:
            return
        now = self._open if self._grip is None else self._grip
        is_open = abs(now - self._open) <= abs(now - self._closed)
        close = is_open if how == "toggle" else how == "close"
        self._grip = float(self._closed if close else self._open)

    def follow(self, action: ArrayLike) -> None:
        """Take over the gripper of an action that somebody else sent, so that a hand-over does not open it."""
        if self.has_gripper:
            self._grip = float(np.asarray(action)[-1])

    def action(self, push: ArrayLike, observation: Observation) -> Vector:
        """The action (A,) of a push (``size``,), each number in [-1, 1].

        Raises:
            UserError: mode ``absolute``, and the robot does not tell its pose.
        """
        whole = np.zeros(len(self._low))
        whole[: self.size] = push
        half = (self._high - self._low) / 2
        if self._mode == "relative":
            action = self._low + half + half * self._scale * whole
        else:
            pose = self._robot.pose(observation)
            if pose is None:
                raise UserError("mode absolute needs a robot that tells its pose")
            action = pose + 2 * half * self._scale * self._passed_s * whole
        if self.has_gripper:
            action[-1] = self._open if self._grip is None else self._grip
        limited: Vector = np.clip(action, self._low, self._high)
        return limited
