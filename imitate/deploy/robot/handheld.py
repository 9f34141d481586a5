"""Common code of teleoperation devices with axes and buttons: gamepads and SpaceMice.

A device acts while a person pushes it or holds its ``act`` button. For a short time afterwards the pose is kept, so
that control does not return to the policy between two movements. In a new episode the device acts only after it was
released once. While a policy acts, the gripper's command follows the policy's, so that the gripper drops nothing when a
person takes over.

:class:`Pushes` converts pushes to actions, for keyboards too.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate.deploy.robot.driver import first_seen, pose_of
from imitate.deploy.robot.robot import Guidance, Observation, Robot, Teleoperator
from imitate.deploy.robot.terminal import EVENTS, TerminalKeys
from imitate.errors import UserError, nearest
from imitate.system import clock

Vector = NDArray[np.float64]
Gripper = bool | Literal["inverted"]
Mode = Literal["relative", "absolute"]


class Pushes:
    """Turns pushes into actions of a robot.

    Args:
        scale: fraction of the action's range for a full push, in (0, 1].
        gripper: true if the last number of an action opens (lowest) and closes (highest) a gripper; ``inverted`` if the
            highest number opens; false if there is no gripper.
        mode: ``relative``: an action is a change, and zero keeps the pose; ``absolute``: an action is a pose, and a
            full push moves it by ``scale`` of the range per second; None chooses by the robot's pose.

    Raises:
        UserError: a setting is invalid.
    """

    def __init__(self, scale: float, gripper: Gripper, mode: Mode | None) -> None:
        if not 0 < scale <= 1:
            raise UserError(f"scale is {scale}, but must be a number above 0 and at most 1")
        if mode not in ("relative", "absolute", None):
            raise UserError(f"mode is '{mode}'; wanted relative or absolute")
        if gripper not in (True, False, "inverted"):
            raise UserError(f"gripper is '{gripper}'; wanted true, false or inverted")
        self._scale, self._mode, self._given = scale, mode, mode
        self.has_gripper, self._inverted = bool(gripper), gripper == "inverted"
        self._grip: float | None = None
        self._ticked, self._passed_s = clock.now(), 0.0
        self._commanded: Vector | None = None
        self._kept: Vector | None = None

    def connect(self, robot: Robot) -> None:
        """Read the range of the actions from a robot.

        Raises:
            UserError: the range is infinite, so that a fraction is undefined; it is unknown whether an action of zeros
                keeps the pose; or the robot's pose contradicts the mode.
        """
        self._robot = robot
        self._low, self._high = map(np.asarray, (robot.limits.low, robot.limits.high))
        if not (np.isfinite(self._low).all() and np.isfinite(self._high).all()):
            raise UserError(
                "the robot's limits are infinite, but a push is a fraction of their range: give finite low and high "
                "(--limits)"
            )
        self.size = len(self._low) - self.has_gripper
        """Number of action dimensions without the gripper."""
        if self.has_gripper:
            ends = (self._high[-1], self._low[-1])
            self._open, self._closed = ends if self._inverted else ends[::-1]
        self._mode = self._mode_of(pose_of(robot, first_seen(robot)))

    def _mode_of(self, pose: Vector | None) -> Mode:
        """Return the mode that fits a robot's ``pose()``."""
        if pose is None:
            if self._given is None:
                raise UserError(
                    "the robot does not report its pose, so it is unknown whether an action of zeros keeps the pose: "
                    "implement pose(), or set mode=relative if actions are changes of the pose"
                )
            return self._given
        if not pose[: self.size].any():
            return self._given or "relative"
        if self._given == "relative":
            raise UserError(
                "mode is relative, but the robot's actions are poses, so an action of zeros would move it: leave "
                "mode out, or set mode=absolute"
            )
        return "absolute"

    def tick(self) -> None:
        """Measure the time since the last control step; call this once in each step."""
        now = clock.now()
        passed_s, self._ticked = now - self._ticked, now
        self._passed_s = min(passed_s, 0.2)
        self._kept = self._commanded if passed_s <= 0.2 else None
        self._commanded = None

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
        """Take the gripper command from a policy's action, so that a take-over does not open the gripper."""
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
                raise UserError(
                    "mode absolute needs the robot's pose, but pose() returned None: implement pose(), "
                    "or set mode=relative"
                )
            # Dimensions without a push keep their last command: an arm that sags would sink if they took the measured
            # pose.
            at = pose if self._kept is None else np.where(whole == 0, self._kept, pose)
            action = at + (self._high - self._low) * self._scale * self._passed_s * whole
            grip = float(at[-1])
        if self.has_gripper:
            action[-1] = grip if self._grip is None else self._grip
        limited: Vector = np.clip(action, self._low, self._high)
        self._commanded = limited.copy()
        return limited


GRIPPER = ("open", "close", "toggle")
ROLES = ("act", *GRIPPER, *sorted(set(EVENTS.values())))
"""Possible roles of a button: ``act`` (the device acts while it is held), a gripper command, or an event."""
_GRIP_S = 0.5
"""Seconds for which a gripper button counts as an action."""


@dataclass(frozen=True)
class Reading:
    """Reading of a device: pushes and pressed buttons.

    Attributes:
        axes: pushes in [-1, 1] by name.
        buttons: names of the pressed buttons.
    """

    axes: Mapping[str, float]
    buttons: frozenset[str]


class DeviceSource(Protocol):
    """Interface of a reader for one kind of device."""

    name: str
    axes: tuple[str, ...]
    """Names of the axes, in the order of the action dimensions."""

    def open(self) -> None:
        """Open the device; raises UserError if no device is connected."""

    def read(self) -> Reading:
        """Return the current state without waiting; raise RobotError if the device was disconnected."""

    def close(self) -> None:
        """Release the device."""


class Handheld(Teleoperator):
    """Teleoperation device with axes and buttons.

    Args:
        source: reader of the device.
        pushes: converts pushes to actions.
        axes: for each action dimension except the gripper the name of an axis (with ``-`` for the opposite direction),
            or None for a dimension that is not moved; None uses the device's axes in order.
        buttons: role of each button (see :data:`ROLES`), by the button's name.
        hold: true to act only while an ``act`` button is held; otherwise pushing suffices.
        dead_band: pushes up to this value are ignored, in [0, 1).
        grace_s: seconds for which the pose is kept after the last push.
        keys: true to let keys of the terminal, if there is one, end an episode, too.

    Raises:
        UserError: a setting is invalid.
    """

    def __init__(
        self,
        source: DeviceSource,
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
                "no button has the role 'act', so the robot would never move: give it to a button, or set hold=false"
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
            UserError: no device is connected, or its axes do not fit the robot's actions.
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
        """Return the person's action, which is None if the device is at rest, and the events of buttons and keys."""
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
        """Begin an episode with an open gripper; the device acts only after it was at rest once."""
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
        """Return pushes in [-1, 1] for all action dimensions but the gripper, measured from the dead band's edge."""
        push = np.zeros(len(self._axes))
        for place, axis in enumerate(self._axes):
            if axis is not None:
                value = reading.axes.get(axis.removeprefix("-"), 0.0)
                push[place] = -value if axis.startswith("-") else value
        size = np.maximum(np.abs(push) - self._dead_band, 0.0) / (1.0 - self._dead_band)
        beyond: NDArray[np.float64] = np.sign(push) * np.minimum(size, 1.0)
        return beyond

    def _fitting(self, size: int) -> list[str | None]:
        """Return the axis of each action dimension except the gripper, or None for a dimension that is not moved."""
        chosen = list(self._source.axes if self._given is None else self._given)
        if self._given is None:
            chosen = chosen[:size]
        if len(chosen) != size:
            raise UserError(
                f"the robot's actions have {size} numbers{' beside the gripper' if self._pushes.has_gripper else ''}, "
                f"and {len(chosen)} axes are given: name one for each, null for a number that stays: "
                f"axes={list(self._source.axes)}".replace("'", '"')
            )
        return chosen

    def _typed(self) -> frozenset[str]:
        """Return the events of keys pressed in the terminal since the last call."""
        keys = "" if self._terminal is None else self._terminal.read()
        return frozenset(EVENTS[key] for key in keys if key in EVENTS)

    def _legend(self) -> str:
        words = [f"{button} {role}" for button, role in self._buttons.items()]
        if self._terminal is not None:
            words.append(
                "in the terminal: Enter success, x failure, Backspace discard, z redo, . end, Esc quit"
            )
        return "; ".join(words)
