"""Adapter from any teleoperation device of LeRobot: leader arms, gamepads, gloves, exoskeletons.

    LeRobot's event                    event here          key in a terminal
    success                            success             Enter
    terminate_episode (no success)     failure             x
    rerecord_episode                   redo                z
                                       discard, end, quit  Backspace, full stop, Esc
    is_intervention                    the person acts     space, with acts=key

A leader arm has no buttons, so the keys of the terminal end episodes.
"""

import sys
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.robot.lerobot_device import (
    close_device,
    first_line,
    make_device,
    number_names,
    open_device,
    type_of,
)
from imitate.deploy.robot.robot import Guidance, Observation, Robot, Teleoperator
from imitate.deploy.robot.terminal import EVENTS, TerminalKeys
from imitate.errors import RobotError, UserError
from imitate.system import clock

Value = TypeVar("Value")
_TAKE_OVER = " "
_LONGEST_STEP_S = 0.2


class LeRobotTeleoperator(Teleoperator):
    """Teleoperation device of LeRobot, whose actions are put into the order of the robot's action dimensions.

    Args:
        type: LeRobot's name of the device's type, such as ``so101_leader``; or a device of LeRobot, not connected.
        calibrate: true to let LeRobot calibrate the device if needed, which asks questions at the terminal.
        acts: when the person acts, for a device without LeRobot's event ``is_intervention``: ``always``, or from one
            press of the space bar to the next (``key``), for ``--take-over``. A device with motors follows the robot
            while the policy acts, and has no torque while the person acts.
        keys: true if keys of the terminal end episodes; None means only if there is a terminal and the device has no
            events.
        follow_speed: largest speed at which a device follows the robot, in units of its action per second.
        config: fields of the type's configuration: ``port``, ``id`` ...

    Raises:
        UserError: LeRobot is not installed, has no such type, or the type does not accept the configuration.
    """

    def __init__(
        self,
        type: Any = None,
        *,
        calibrate: bool = False,
        acts: Literal["always", "key"] = "always",
        keys: bool | None = None,
        follow_speed: float = 50.0,
        **config: Any,
    ) -> None:
        if acts not in ("always", "key"):
            raise UserError(f"acts is '{acts}'; expected always or key")
        if not follow_speed > 0:
            raise UserError(f"follow_speed is {follow_speed}; expected a number above 0")
        is_name = type is None or isinstance(type, str)
        self._device = make_device("teleoperator", type, config) if is_name else type
        self._type = type if is_name else type_of(type)
        self._calibrate, self._config, self._speed = calibrate, config, follow_speed
        self._with_events = hasattr(self._device, "get_teleop_events")
        self._wants_keys = acts == "key" or keys is True
        self._may_have_keys = keys is None and not self._with_events
        self._acts_by_key = acts == "key"
        self._person = not self._acts_by_key
        self._names: tuple[str, ...] = ()
        self._terminal: TerminalKeys | None = None
        self._goal: dict[str, float] | None = None
        self._followed: float

    def connect(self, robot: Robot) -> None:
        """Open the device.

        Raises:
            UserError: the device does not provide the robot's action dimensions, cannot be connected, or is not
                calibrated.
        """
        try:
            own = number_names(self._device.action_features)
        except Exception as error:  # for example LeRobot's keyboard device
            why = first_line(error)
            raise UserError(f"LeRobot's '{self._type}' gives no action: {why}") from error
        self._names = own if robot.action_names is None else robot.action_names
        missing = [name for name in self._names if name not in own]
        if missing or len(self._names) != robot.limits.size:
            wanted = ", ".join(robot.action_names or (f"{robot.limits.size} numbers",))
            raise UserError(
                f"LeRobot's '{self._type}' gives {', '.join(own)}; the robot's action is {wanted}"
            )
        given = {"type": self._type, **self._config}
        open_device("teleoperator", self._device, self._calibrate, given)
        try:
            if self._wants_keys or (self._may_have_keys and TerminalKeys.present()):
                self._terminal = TerminalKeys(f"LeRobot's '{self._type}'")
        except UserError:
            self.close()
            raise
        if self._terminal is not None:
            space = "space: take over, give back   " if self._acts_by_key else ""
            sys.stderr.write(
                f"{space}Enter success   x failure   Backspace discard   z redo   . end   Esc quit\n"
            )

    def close(self) -> None:
        """Close the device and restore the terminal."""
        terminal, self._terminal = self._terminal, None
        if terminal is not None:
            terminal.close()
        close_device(self._device)

    def guide(self, observation: Observation) -> Guidance:
        """Return the device's action if the person acts, and the events of device and keys.

        Raises:
            RobotError: LeRobot raises, or an action does not fit the device's features.
        """
        events = self._pressed() | self._flags()
        if not self._person:
            return Guidance(None, frozenset(events))
        self._let_go()
        given = self._call(self._device.get_action)
        if not given:  # for example, a phone that is not enabled returns no action
            return Guidance(None, frozenset(events))
        return Guidance(self._vector(given), frozenset(events))

    def follow(self, action: NDArray[np.float64]) -> None:
        """While the person does not act, move the device's motors slowly towards a sent action."""
        features = number_names(self._device.feedback_features)
        if self._person or not features:
            return
        now = clock.now()
        if self._goal is None:
            given = self._call(self._device.get_action)
            self._goal = {name: float(given[name]) for name in features if name in given}
            self._feed()  # set before the torque is on, otherwise a motor would move to an old goal
            self._torque(on=True)
        else:
            step = self._speed * min(now - self._followed, _LONGEST_STEP_S)
            for name, value in zip(self._names, action, strict=True):
                if name in self._goal:
                    before = self._goal[name]
                    self._goal[name] = before + float(np.clip(value - before, -step, step))
            self._feed()
        self._followed = now

    # ---- keys and events -------------------------------------------------------------------------

    def _pressed(self) -> set[str]:
        """Return events of keys; the space bar changes who acts."""
        events = set()
        for key in "" if self._terminal is None else self._terminal.read():
            if key == _TAKE_OVER and self._acts_by_key:
                self._person = not self._person
            elif key in EVENTS:
                events.add(EVENTS[key])
        return events

    def _flags(self) -> set[str]:
        """Return events of the device; ``is_intervention`` is true if the person acts."""
        if not self._with_events:
            return set()
        given = self._call(self._device.get_teleop_events)
        flags = {getattr(key, "value", key): bool(value) for key, value in given.items()}
        self._person = flags.get("is_intervention", self._person)
        if flags.get(
            "rerecord_episode"
        ):  # with these events LeRobot also reports a terminated episode
            return {"redo"}
        if flags.get("success"):
            return {"success"}
        return {"failure"} if flags.get("failure") or flags.get("terminate_episode") else set()

    # ---- LeRobot's calls -------------------------------------------------------------------------

    def _vector(self, given: Any) -> NDArray[np.float64]:
        missing = [name for name in self._names if name not in given]
        if missing:
            raise RobotError(f"LeRobot's '{self._type}' gave no '{missing[0]}' in its action")
        return np.array([float(given[name]) for name in self._names])

    def _let_go(self) -> None:
        if self._goal is not None:
            self._goal = None
            self._torque(on=False)

    def _feed(self) -> None:
        self._call(lambda: self._device.send_feedback(dict(self._goal or {})))

    def _torque(self, on: bool) -> None:
        switch = getattr(self._device, "enable_torque" if on else "disable_torque", None)
        if switch is not None:
            self._call(switch)

    def _call(self, call: Callable[[], Value]) -> Value:
        try:
            return call()
        except Exception as error:  # a driver may raise any error
            raise RobotError(f"LeRobot's '{self._type}' failed: {first_line(error)}") from error
