"""Actions from pushes: the common part of keyboards, gamepads and SpaceMice."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate.deploy.driver import first_seen, pose_of
from imitate.deploy.robot import Observation, Robot
from imitate.errors import UserError
from imitate.system import clock

Vector = NDArray[np.float64]
Gripper = bool | Literal["inverted"]
Mode = Literal["relative", "absolute"]


class Pushes:
    """Turns pushes into actions of a robot.

    Args:
        scale: fraction of the action's range for a full push, in (0, 1].
        gripper: true if the last number of an action opens (lowest) and closes (highest) a gripper; ``inverted`` if the
            highest opens; false if there is no gripper.
        mode: ``relative``: an action is a change, and zero keeps the pose; ``absolute``: an action is a pose, and a
            full push moves it by ``scale`` of the range per second; None chooses by the robot's pose.

    Raises:
        UserError: a setting is invalid.
    """

    def __init__(self, scale: float, gripper: Gripper, mode: Mode | None) -> None:
        if not 0 < scale <= 1:
            raise UserError(f"scale is {scale}; wanted a number above 0, at most 1")
        if mode not in ("relative", "absolute", None):
            raise UserError(f"mode is '{mode}'; wanted relative or absolute")
        if gripper not in (True, False, "inverted"):
            raise UserError(f"gripper is '{gripper}'; wanted true, false or inverted")
        self._scale, self._mode, self._given = scale, mode, mode
        self.has_gripper, self._inverted = bool(gripper), gripper == "inverted"
        self._grip: float | None = None
        self._ticked, self._passed_s = clock.now(), 0.0

    def connect(self, robot: Robot) -> None:
        """Read the range of the actions from a robot.

        Raises:
            UserError: the range is infinite, so a fraction of it is undefined; or it is unknown whether zero keeps the
                pose; or the robot's pose contradicts the mode.
        """
        self._robot = robot
        self._low, self._high = map(np.asarray, (robot.limits.low, robot.limits.high))
        if not (np.isfinite(self._low).all() and np.isfinite(self._high).all()):
            raise UserError(
                "the robot's limits are infinite, and a push is a part of them: give finite low and high (--limits)"
            )
        self.size = len(self._low) - self.has_gripper
        """Number of an action's values without the gripper."""
        if self.has_gripper:
            ends = (self._high[-1], self._low[-1])
            self._open, self._closed = ends if self._inverted else ends[::-1]
        self._mode = self._mode_of(pose_of(robot, first_seen(robot)))

    def _mode_of(self, pose: Vector | None) -> Mode:
        """Return the mode of a robot with such a pose."""
        if pose is None:
            if self._given is None:
                raise UserError(
                    "the robot does not tell its pose, so it is unknown whether zero keeps "
                    "it: implement pose(), or set mode=relative if an action is a change and "
                    "zero keeps the pose"
                )
            return self._given
        if not pose[: self.size].any():
            return self._given or "relative"
        if self._given == "relative":
            raise UserError(
                "mode is relative, but zero does not keep the pose of this robot, whose "
                "actions are poses: leave mode out, or use absolute"
            )
        return "absolute"

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
        """Adopt the gripper command of an action sent by somebody else, so that a hand-over does not open it."""
        if self.has_gripper:
            self._grip = float(np.asarray(action)[-1])

    def action(self, push: ArrayLike, observation: Observation) -> Vector:
        """Return the action (A,) of a push (``size``,) with values in [-1, 1].

        Raises:
            UserError: the mode is ``absolute`` but the robot does not provide its pose, or the mode is ``relative`` but
                actions are poses.
        """
        whole = np.zeros(len(self._low))
        whole[: self.size] = push
        pose = pose_of(self._robot, observation)
        if (
            self._mode == "relative"
        ):  # an arm with absolute actions may have been at zero when it was connected
            self._mode = self._mode_of(pose)
        grip = self._open if self.has_gripper else 0.0
        if self._mode == "relative":
            middle = (self._low + self._high) / 2
            rest = np.where((self._low < 0) & (self._high > 0), 0.0, middle)
            room = np.where(whole > 0, self._high - rest, rest - self._low)
            action = rest + self._scale * room * whole
        else:
            if pose is None:
                raise UserError("mode absolute needs a robot that provides its pose")
            action = pose + (self._high - self._low) * self._scale * self._passed_s * whole
            grip = float(pose[-1])
        if self.has_gripper:
            action[-1] = grip if self._grip is None else self._grip
        limited: Vector = np.clip(action, self._low, self._high)
        return limited
