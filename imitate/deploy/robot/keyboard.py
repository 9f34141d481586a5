"""Teleoperation by the keys of a terminal, without further packages or a screen, also over ssh.

    w s    first number of the action (up, down)      u j    fourth
    a d    second                                     i k    fifth
    r f    third                                      o l    sixth
    space  open or close the gripper, the last number
    Enter success   x failure   Backspace discard   z redo   . end   Esc quit

A terminal reports key presses but not releases: a key acts for ``press_s`` after its last press, which the terminal's
key repeat prolongs.
"""

import sys

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate.deploy.robot.handheld import Gripper, Mode, Pushes
from imitate.deploy.robot.robot import Guidance, Observation, Robot, Teleoperator
from imitate.deploy.robot.terminal import EVENTS, TerminalKeys
from imitate.system import clock

PAIRS = (("w", "s"), ("a", "d"), ("r", "f"), ("u", "j"), ("i", "k"), ("o", "l"))
"""For each action dimension the key that raises its value and the key that lowers it."""


class Keyboard(Teleoperator):
    """Teleoperation device: the keys of a terminal, see the module.

    Args:
        scale: fraction of the action's range for a key press, in (0, 1].
        press_s: seconds for which a key acts.
        gripper: see :class:`imitate.deploy.robot.handheld.Pushes`.
        mode: see :class:`imitate.deploy.robot.handheld.Pushes`.
    """

    def __init__(
        self,
        scale: float = 0.3,
        press_s: float = 0.25,
        gripper: Gripper = True,
        mode: Mode | None = None,
    ) -> None:
        self._pushes, self._press_s = Pushes(scale, gripper, mode), press_s
        self._terminal: TerminalKeys | None = None
        self._seen: dict[str, float] = {}
        self._gripper_until = -np.inf
        self._acted = False

    def connect(self, robot: Robot) -> None:
        """Read the terminal's keys one by one from now on.

        Raises:
            UserError: there is no terminal.
        """
        self._pushes.connect(robot)
        self._terminal = TerminalKeys()
        sys.stderr.write((__doc__ or "").split("\n\n")[1] + "\n")

    def close(self) -> None:
        """Restore the terminal."""
        terminal, self._terminal = self._terminal, None
        if terminal is not None:
            terminal.close()

    def guide(self, observation: Observation) -> Guidance:
        """Return the action of the pressed keys, which is None if no key is pressed, and the events."""
        now = clock.now()
        self._pushes.tick()
        events = set()
        for key in self._terminal.read() if self._terminal is not None else ():
            if key in EVENTS:
                events.add(EVENTS[key])
            elif key == " " and self._pushes.has_gripper:
                self._pushes.grip("toggle")
                self._gripper_until = now + max(self._press_s, 0.5)
            else:
                self._seen[key] = now
        if events:  # begin the next episode with an open gripper and no pressed key
            self._pushes.begin()
            self._gripper_until, self._seen = -np.inf, {}
        action = self._action(observation, now)
        self._acted = action is not None
        return Guidance(action, frozenset(events))

    def follow(self, action: ArrayLike) -> None:
        """Keep the gripper in the state that a policy commanded last."""
        if not self._acted:
            self._pushes.follow(action)

    def _action(self, observation: Observation, now: float) -> NDArray[np.float64] | None:
        push = np.zeros(self._pushes.size)
        for axis, (up, down) in enumerate(PAIRS[: len(push)]):
            push[axis] = self._is_down(up, now) - self._is_down(down, now)
        if not push.any() and now >= self._gripper_until:
            return None
        return self._pushes.action(push, observation)

    def _is_down(self, key: str, now: float) -> bool:
        return now - self._seen.get(key, -np.inf) < self._press_s
