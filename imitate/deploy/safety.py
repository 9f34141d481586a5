"""Settings of the control loop: when it holds the robot, and when it gives up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from imitate.deploy.robot import Robot
from imitate.errors import UserError


@dataclass(frozen=True)
class Safety:
    """When to hold, and when to give up. Defaults suit an arm at 10 to 30 Hz.

    Attributes:
        max_age_periods: an observation older than so many control periods is not acted on ...
        max_age_s: ... and so many seconds, and than one and a half periods of the robot's slowest camera
            (:attr:`Robot.camera_hz`).
        hold_s: seconds in which a policy gives no action after which the episode ends.
        late: so many late steps ...
        late_of: ... among so many end the episode; 0 late steps: never.
        watchdog_s: seconds without a finished step after which another thread stops the robot; three periods at least.
        frozen: steps with identical images after which the camera counts as frozen, half a second at least; 0: not
            checked.
        frozen_pose: steps of clear motion of the commands with a bit-identical measured pose after which the pose is no
            observation; 0: not checked.
        first_action: one too far from the present pose is approached within the limits, or refused.
        stop_attempts: times that a stop which raises is tried.

    Raises:
        UserError: a value would switch its check off without saying so.
    """

    max_age_periods: float = 3.0
    max_age_s: float = 0.15
    hold_s: float = 1.0
    late: int = 3
    late_of: int = 10
    watchdog_s: float = 0.5
    frozen: int = 10
    frozen_pose: int = 10
    first_action: Literal["approach", "refuse"] = "approach"
    stop_attempts: int = 3

    def oldest_s(self, period_s: float, robot: Robot) -> float:
        """Age of the oldest observation that is acted on; infinite where time stands still between actions."""
        if robot.in_step:
            return math.inf
        camera_s = 0.0 if robot.camera_hz is None else 1.5 / robot.camera_hz
        return max(self.max_age_periods * period_s, self.max_age_s, camera_s)

    def __post_init__(self) -> None:
        for name in ("max_age_periods", "max_age_s", "hold_s", "watchdog_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UserError(f"{name} is {value}; wanted a finite number above 0")
        for name, least in (
            ("stop_attempts", 1),
            ("late", 0),
            ("frozen", 0),
            ("frozen_pose", 0),
        ):
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}; wanted at least {least}")
        if self.late > self.late_of:
            raise UserError(
                f"late is {self.late} of late_of {self.late_of} steps, which never happens; wanted late_of at least "
                "late, or late 0 to allow late steps"
            )
        if self.first_action not in ("approach", "refuse"):
            raise UserError(f"first_action is '{self.first_action}'; wanted approach or refuse")
