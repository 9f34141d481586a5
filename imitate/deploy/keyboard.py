"""Teleoperation by the keys of a terminal: no package, no screen, also over ssh.

    w s    first number of the action up, down        u j    fourth
    a d    second                                     i k    fifth
    r f    third                                      o l    sixth
    space  open or close the gripper, the last number
    Enter success   x failure   Backspace discard   z redo   . end   Esc quit

A terminal tells when a key goes down, not when it goes up: a key acts for ``press_s`` after it was last seen, which the
terminal's key repeat prolongs.
"""

from __future__ import annotations

import sys
import time
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.robot import Guidance, Observation, Robot, Teleoperator
from imitate.deploy.terminal import EVENTS, TerminalKeys
from imitate.errors import UserError

PAIRS = (("w", "s"), ("a", "d"), ("r", "f"), ("u", "j"), ("i", "k"), ("o", "l"))
"""Keys that raise and lower each number of an action."""


class Keyboard(Teleoperator):
    """See the module.

    Args:
        scale: part of the action's range that a key gives, in (0, 1].
        press_s: seconds for which a key acts.
        gripper: whether the last number of an action opens (lowest) and closes (highest) a gripper.
        mode: ``relative``: an action is a change, and zero keeps the pose; ``absolute``: an action is a pose, and keys
            move it by ``scale`` of the range per second.
    """

    def __init__(
        self,
        scale: float = 0.3,
        press_s: float = 0.25,
        gripper: bool = True,
        mode: Literal["relative", "absolute"] = "relative",
    ) -> None:
        if not 0 < scale <= 1:
            raise UserError(f"scale is {scale}; wanted a number above 0, at most 1")
        if mode not in ("relative", "absolute"):
            raise UserError(f"mode is '{mode}'; wanted relative or absolute")
        self._scale, self._press_s, self._has_gripper, self._mode = scale, press_s, gripper, mode
        self._terminal: TerminalKeys | None = None
        self._robot: Robot | None = None
        self._seen: dict[str, float] = {}
        self._closed = False
        self._gripper_until = 0.0
        self._asked = time.monotonic()

    def connect(self, robot: Robot) -> None:
        """Take the terminal's keys one by one.

        Raises:
            UserError: there is no terminal.
        """
        self._robot, self._low, self._high = (
            robot,
            *map(np.asarray, (robot.limits.low, robot.limits.high)),
        )
        self._terminal = TerminalKeys()
        sys.stderr.write((__doc__ or "").split("\n\n")[1] + "\n")

    def close(self) -> None:
        """Give the terminal back as it was."""
        terminal, self._terminal = self._terminal, None
        if terminal is not None:
            terminal.close()

    def guide(self, observation: Observation) -> Guidance:
        """The action of the keys that are down; None where no key is."""
        now = time.monotonic()
        passed, self._asked = min(now - self._asked, 0.2), now
        events = set()
        for key in self._terminal.read() if self._terminal is not None else ():
            if key in EVENTS:
                events.add(EVENTS[key])
            elif key == " " and self._has_gripper:
                self._closed = not self._closed
                self._gripper_until = now + max(self._press_s, 0.5)
            else:
                self._seen[key] = now
        if events:  # the next episode begins with an open gripper and no key
            self._closed, self._gripper_until, self._seen = False, 0.0, {}
        return Guidance(self._action(observation, now, passed), frozenset(events))

    def _action(
        self, observation: Observation, now: float, passed: float
    ) -> NDArray[np.float64] | None:
        size = len(self._low)
        axes = size - self._has_gripper
        push = np.zeros(size)
        for axis, (up, down) in enumerate(PAIRS[:axes]):
            push[axis] = self._is_down(up, now) - self._is_down(down, now)
        if not push.any() and now >= self._gripper_until:
            return None
        middle, half = (self._high + self._low) / 2, (self._high - self._low) / 2
        if self._mode == "relative":
            action = middle + half * self._scale * push
        else:
            pose = None if self._robot is None else self._robot.pose(observation)
            if pose is None:
                raise UserError("mode absolute needs a robot that tells its pose")
            action = pose + 2 * half * self._scale * passed * push
        if self._has_gripper:
            action[-1] = self._high[-1] if self._closed else self._low[-1]
        limited: NDArray[np.float64] = np.clip(action, self._low, self._high)
        return limited

    def _is_down(self, key: str, now: float) -> bool:
        return now - self._seen.get(key, -np.inf) < self._press_s
