"""Teleoperation devices with axes and buttons: the common part of gamepads and SpaceMice.

A device acts while a person pushes it or holds its ``act`` button. For a short time afterwards the pose is kept, so
that control does not return to the policy between two movements. In a new episode it acts only after it was at rest
once. While a policy acts, the gripper's command follows the policy's, so that taking over drops nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate.deploy.pushes import Pushes
from imitate.deploy.robot import Guidance, Observation, Robot, Teleoperator
from imitate.deploy.terminal import EVENTS, TerminalKeys
from imitate.errors import UserError, nearest
from imitate.system import clock

GRIPPER = ("open", "close", "toggle")
ROLES = ("act", *GRIPPER, *sorted(set(EVENTS.values())))
"""Possible roles of a button: ``act`` while it is held, a command of the gripper, or an event."""
_GRIP_S = 0.5
"""Seconds for which a gripper button acts."""


@dataclass(frozen=True)
class Reading:
    """State of a device.

    Attributes:
        axes: pushes in [-1, 1] by name.
        buttons: names of the pressed buttons.
    """

    axes: Mapping[str, float]
    buttons: frozenset[str]


class Source(Protocol):
    """Interface of one device."""

    name: str
    axes: tuple[str, ...]
    """Names of the axes, in the order of an action's numbers."""

    def open(self) -> None:
        """Open the device; raises UserError if there is none."""

    def read(self) -> Reading:
        """Return the current state without waiting; raise RobotError if the device was disconnected."""

    def close(self) -> None:
        """Release the device."""


class Handheld(Teleoperator):
    """A device with axes and buttons.

    Args:
        source: the device.
        pushes: converts pushes to actions.
        axes: for each number of an action besides the gripper, the name of an axis (with ``-`` for the opposite
            direction), or None for a number that stays; None uses the device's axes in order.
        buttons: a role (see :data:`ROLES`) by name of button.
        hold: true to act only while an ``act`` button is held; otherwise pushing suffices.
        dead_band: pushes up to this value are ignored, in [0, 1).
        grace_s: seconds for which the pose is kept after the last push.
        keys: true to also read keys that end an episode from the terminal, if there is one.

    Raises:
        UserError: a setting is invalid.
    """

    def __init__(
        self,
        source: Source,
        pushes: Pushes,
        *,
        axes: Sequence[str | None] | None,
        buttons: Mapping[str, str],
        hold: bool,
        dead_band: float,
        grace_s: float,
        keys: bool = True,
    ) -> None:
        if not 0 <= dead_band < 1:
            raise UserError(f"dead_band is {dead_band}; wanted a number in [0, 1)")
        if not grace_s >= 0:
            raise UserError(f"grace_s is {grace_s}; wanted seconds, at least 0")
        for role in buttons.values():
            if role not in ROLES:
                raise UserError(f"a button cannot be '{role}'; {nearest(role, ROLES)}")
        if hold and "act" not in buttons.values():
            raise UserError(
                "no button has the role 'act', so nothing would move: give one, or hold=false"
            )
        for axis in axes or ():
            if axis is not None and axis.removeprefix("-") not in source.axes:
                raise UserError(f"there is no axis '{axis}'; {nearest(axis, source.axes)}")
        self._source, self._pushes, self._given, self._buttons = source, pushes, axes, dict(buttons)
        self._hold, self._dead_band, self._grace_s = hold, dead_band, grace_s
        self._with_keys = keys
        self._terminal: TerminalKeys | None = None
        self._axes: list[str | None] = []
        self._down: frozenset[str] | None = None
        self._begin()
        self._acted = False

    def connect(self, robot: Robot) -> None:
        """Open the device.

        Raises:
            UserError: there is no device, or its axes do not fit the robot's actions.
        """
        self._pushes.connect(robot)
        self._axes = self._fitting(self._pushes.size)
        self._source.open()
        if self._with_keys and TerminalKeys.present():
            self._terminal = TerminalKeys()
        sys.stderr.write(f"{self._source.name}: {self._legend()}\n")

    def close(self) -> None:
        """Release the device and the terminal."""
        terminal, self._terminal = self._terminal, None
        if terminal is not None:
            terminal.close()
        self._source.close()

    def start_episode(self) -> None:
        """Begin a new episode; buttons that are already held neither act nor count as pressed."""
        self._down, self._acted = None, False
        self._begin()

    def guide(self, observation: Observation) -> Guidance:
        """Return the person's action, or None if the device is at rest."""
        now = clock.now()
        self._pushes.tick()
        reading = self._source.read()
        before = reading.buttons if self._down is None else self._down
        self._down = reading.buttons
        held = self._roles(reading.buttons)
        pressed = self._roles(reading.buttons - before)
        events = (pressed & set(EVENTS.values())) | self._typed()
        if events:
            self._begin()
            self._acted = False
            return Guidance(None, events)
        action = self._action(self._push(reading), held, pressed, observation, now)
        self._acted = action is not None
        return Guidance(action)

    def follow(self, action: ArrayLike) -> None:
        """Keep the gripper in the state that a policy commanded last."""
        if not self._acted:
            self._pushes.follow(action)

    def _roles(self, buttons: frozenset[str]) -> frozenset[str]:
        return frozenset(self._buttons[button] for button in buttons if button in self._buttons)

    def _begin(self) -> None:
        """Begin an episode: the device must be at rest once, and the gripper is open."""
        self._pushes.begin()
        self._rested = False
        self._until = self._grip_until = -np.inf

    def _action(
        self,
        push: NDArray[np.float64],
        held: frozenset[str],
        pressed: frozenset[str],
        observation: Observation,
        now: float,
    ) -> NDArray[np.float64] | None:
        acting = "act" in held or (not self._hold and bool(push.any()))
        self._rested |= not acting
        if not self._rested:
            return None
        if acting or not self._hold:
            for how in GRIPPER:
                if how in pressed and self._pushes.has_gripper:
                    self._pushes.grip(how)
                    self._grip_until = now + _GRIP_S
        if acting or (not self._hold and now < self._grip_until):
            self._until = now + self._grace_s
        elif now >= self._until:
            return None
        return self._pushes.action(push if acting else np.zeros_like(push), observation)

    def _push(self, reading: Reading) -> NDArray[np.float64]:
        """Return the pushes (A without the gripper,), measured from the edge of the dead band."""
        push = np.zeros(len(self._axes))
        for place, axis in enumerate(self._axes):
            if axis is not None:
                value = reading.axes.get(axis.removeprefix("-"), 0.0)
                push[place] = -value if axis.startswith("-") else value
        size = np.maximum(np.abs(push) - self._dead_band, 0.0) / (1.0 - self._dead_band)
        beyond: NDArray[np.float64] = np.sign(push) * np.minimum(size, 1.0)
        return beyond

    def _fitting(self, size: int) -> list[str | None]:
        """Return an axis for each number of an action besides the gripper."""
        chosen = list(self._source.axes if self._given is None else self._given)
        if self._given is None and len(chosen) > size:
            chosen = chosen[:size]
        if len(chosen) != size:
            raise UserError(
                f"the robot's actions have {size} numbers{' beside the gripper' if self._pushes.has_gripper else ''}, "
                f"and {len(chosen)} axes are given: name one for each, null for a number that stays: "
                f"axes={list(self._source.axes)}".replace("'", '"')
            )
        return chosen

    def _typed(self) -> frozenset[str]:
        """Return the events of keys in the terminal."""
        keys = "" if self._terminal is None else self._terminal.read()
        return frozenset(EVENTS[key] for key in keys if key in EVENTS)

    def _legend(self) -> str:
        words = [f"{button} {role}" for button, role in self._buttons.items()]
        if self._terminal is not None:
            words.append(
                "in the terminal: Enter success, x failure, Backspace discard, z redo, . end, Esc quit"
            )
        return "; ".join(words)
