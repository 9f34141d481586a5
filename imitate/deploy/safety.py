"""Settings of the control loop: when it holds the robot, and when it stops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from imitate.deploy.robot import Robot
from imitate.errors import UserError


@dataclass(frozen=True)
class Safety:
    """When to hold and when to stop. Defaults suit an arm at 10 to 30 Hz.

    Attributes:
        max_age_periods: an observation is not used for acting if it is older than this many control periods ...
        max_age_s: ... and than this many seconds, and than one and a half periods of the robot's slowest camera
            (:attr:`Robot.camera_hz`).
        hold_s: seconds without an action of the policy after which the episode ends.
        late: this many late steps ...
        late_of: ... among this many end the episode; 0 late steps for never.
        watchdog_s: seconds without a finished step after which another thread stops the robot; three periods at least.
        frozen: steps with identical images after which the camera counts as frozen, at least half a second; 0 disables
            the check.
        frozen_pose: steps with clear motion of the commands but a bit-identical measured pose after which the pose is
            invalid; 0 disables the check.
        first_action: whether a first action far from the current pose is approached within the limits or refused.
        stop_attempts: number of attempts if a stop raises an error.

    Raises:
        UserError: a value would silently disable its check.
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
        """Return the largest age of an observation for acting; infinite if time stands still between actions."""
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
