"""Adapter from any robot of LeRobot to the interface of a robot.

    observation_features                 here                      a converted LeRobot dataset has
    "shoulder_pan.pos": float, ...       state, in this order      observation.state -> state
    "front": (480, 640, 3)               front_image               observation.images.front -> front_image
    action_features, in this order       actions                   action -> actions

So a policy that was trained on a converted dataset of the robot runs on it unchanged. LeRobot has no stop: see
:meth:`LeRobotRobot.stop`.
"""

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.robot.lerobot_device import (
    buses_of,
    close_device,
    first_line,
    make_device,
    number_names,
    open_device,
    ranges_of,
    type_of,
)
from imitate.deploy.robot.limits import ActionLimits
from imitate.deploy.robot.robot import Observation, Robot
from imitate.errors import RobotError, UserError
from imitate.system import clock

Vector = NDArray[np.float64]
_SPEEDS = (".vel", ".vx", ".vy", ".vz", ".vtheta", ".torque", "_velocity")
_PATIENCE_S = 0.2
_SLACK = 0.02


class LeRobotRobot(Robot):
    """Robot of LeRobot; only one call is made at a time, because a motor bus accepts no more.

    Args:
        type: LeRobot's name of the robot's type, such as ``so101_follower``; or a robot of LeRobot, not connected.
        calibrate: true to let LeRobot calibrate the robot if needed, which asks questions at the terminal.
        rest: values that keep the robot at rest, by the name of an action dimension. Others are kept at rest by the
            measured position of a joint, or a speed of 0.
        grippers: names of action dimensions that keep their last command at rest, so that a gripper does not let go;
            None for all with "gripper" in their name.
        at_stop: ``pose`` sends the measured pose as target to stop the robot; ``torque_off`` switches the motors off,
            so that an arm falls.
        config: fields of the type's configuration: ``port``, ``id``, ``cameras``, ``max_relative_target`` ...

    Raises:
        UserError: LeRobot is not installed, has no such type, or refuses the configuration; or it is unknown how to
            keep the robot at rest.

    Attributes:
        action_names: names of the action dimensions.
        limits: limits of each joint according to LeRobot; unknown ones are infinite, and then nothing is sent.
    """

    action_names: tuple[str, ...]

    def __init__(
        self,
        type: Any = None,
        *,
        calibrate: bool = False,
        rest: Mapping[str, float] | None = None,
        grippers: Sequence[str] | None = None,
        at_stop: Literal["pose", "torque_off"] = "pose",
        **config: Any,
    ) -> None:
        is_name = type is None or isinstance(type, str)
        self._device = make_device("robot", type, config) if is_name else type
        self._type = type if is_name else type_of(type)
        self._calibrate, self._config, self._at_stop = calibrate, config, at_stop
        seen = self._device.observation_features
        self._numbers = number_names(seen)
        self._arrays = {_key(name, shape): name for name, shape in seen.items() if _is_shape(shape)}
        self.observation_shapes = {"state": (len(self._numbers),)} if self._numbers else {}
        self.observation_shapes |= {k: tuple(seen[name]) for k, name in self._arrays.items()}
        self.observation_names = {"state": self._numbers} if self._numbers else {}
        self.action_names = number_names(self._device.action_features)
        if grippers is None:
            grippers = [name for name in self.action_names if "gripper" in name.lower()]
        self._grippers, self._rest = tuple(grippers), dict(rest or {})
        self._check()
        self._set_limits()
        self._lock = threading.Lock()
        self._connected = False
        self._measured: tuple[float, dict[str, float]] | None = None
        self._still: dict[str, float] | None = None
        self._sent: dict[str, float] = {}
        self._sent_at = -np.inf

    # ---- life ------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Open bus and cameras, and measure the robot's pose. LeRobot switches the torque of arms off for a moment.

        Raises:
            UserError: the robot cannot be connected, is not calibrated, or gives no observation.
        """
        given = {"type": self._type, **self._config}
        open_device("robot", self._device, self._calibrate, given)
        self._connected = True
        try:
            self._set_limits()
            self.observe()
        except Exception as error:  # a driver may raise any error
            self.close()
            why = first_line(error)
            raise UserError(f"LeRobot's '{self._type}' gives no observation: {why}") from error

    def close(self) -> None:
        """Close bus and cameras. Motors keep their torque, unless ``disable_torque_on_disconnect`` is true."""
        self._connected = False
        is_free = clock.acquire(self._lock, _PATIENCE_S)  # a hanging call may hold the lock forever
        try:
            close_device(self._device)
        finally:
            if is_free:
                self._lock.release()

    # ---- the robot -------------------------------------------------------------------------------

    def observe(self) -> Observation:
        """Return the newest observation, with the time stamp of the oldest camera image if the cameras have one.

        Raises:
            RobotError: an observation does not fit LeRobot's features. Errors of LeRobot pass unchanged.
        """
        with self._lock:
            stamp, seen = self._look()
        values: dict[str, NDArray[Any]] = {}
        if self._numbers:
            values["state"] = np.array([seen[name] for name in self._numbers], dtype=np.float32)
        for key, name in self._arrays.items():
            values[key] = np.asarray(seen[name])
            if values[key].shape != self.observation_shapes[key]:
                raise RobotError(
                    f"LeRobot's '{name}' has shape {values[key].shape}; expected the shape in LeRobot's features, "
                    f"{self.observation_shapes[key]}"
                )
        return Observation(values, stamp)

    def send(self, action: NDArray[np.float64]) -> None:
        """Send targets to the motors. LeRobot's ``max_relative_target`` shortens them further if it is set.

        Raises:
            UserError: an action dimension has no limits.
            RobotError: the action is not finite. Errors of LeRobot pass unchanged.
        """
        box = np.isfinite(self.limits.low) & np.isfinite(self.limits.high)
        if not box.all():
            raise UserError(
                f"'{self.action_names[int(np.argmin(box))]}' has no limits in LeRobot, so nothing was sent: give low "
                f"and high (--limits) in the order {', '.join(self.action_names)}"
            )
        with self._lock:
            self._still = None
            self._send_targets(dict(zip(self.action_names, map(float, action), strict=True)))

    def hold(self) -> None:
        """Send the pose that was measured in the first step without an action, so that an arm does not sink.

        If no pose was measured after the last command, send this command again, because older poses lag behind it.
        """
        with self._lock:
            if self._still is None and self._moved_since():
                self._still = self._at_rest(self._sent)
            self._send_targets(self._standing())

    def stop(self) -> None:
        """Send the measured pose as target, or switch the torque off (``at_stop``).

        The pose is measured after the last command, and at most 0.2 s ago. If measuring fails, or a call hangs for 0.2
        s (in a camera, for instance), the last measured pose is used.
        """
        if not self._connected:
            return
        is_free = clock.acquire(self._lock, _PATIENCE_S)
        try:
            if self._at_stop == "torque_off":
                for bus in buses_of(self._device):
                    bus.disable_torque()
                return
            seen_s = clock.now() - self._last_seen()[0]
            is_old = self._moved_since() or seen_s > _PATIENCE_S
            if self._still is None and is_free and is_old:
                self._look_in_time()
            self._send_targets(self._standing())
        finally:
            if is_free:
                self._lock.release()

    def pose(self, observation: Observation) -> NDArray[np.float64]:
        """Return the measured positions, 0 for speeds, and the last command of grippers.

        A joint outside its limits by at most 2 % of the range counts as at the limit, because resting arms may be
        there.
        """
        measured = dict(zip(self._numbers, observation.values.get("state", ()), strict=True))
        at_rest = self._at_rest(measured)
        pose = np.array([at_rest[name] for name in self.action_names], dtype=np.float64)
        low, high = np.asarray(self.limits.low), np.asarray(self.limits.high)
        edge = np.clip(pose, low, high)
        # For a joint without limits the range is infinite, and the difference is 0.
        is_near: Vector = np.where(np.abs(pose - edge) <= _SLACK * (high - low), edge, pose)
        return is_near

    # ---- calls of LeRobot while the lock is held -----------------------------------------------------

    def _look(self) -> tuple[float, dict[str, Any]]:
        """Return the capture time of LeRobot's newest observation, and the observation."""
        began = clock.now()
        stamp = min(began, self._oldest_image())
        seen = self._device.get_observation()
        missing = [name for name in (*self._numbers, *self._arrays.values()) if name not in seen]
        if missing:
            raise RobotError(f"LeRobot's robot gave no '{missing[0]}', which its features name")
        measured = {name: float(seen[name]) for name in self._numbers}
        if all(map(isfinite, measured.values())):
            self._measured = began, measured
        return stamp, seen

    def _oldest_image(self) -> float:
        """Return the capture time of the oldest image of the next observation; infinite if no camera reports it.

        The time is read before the observation: an image that arrives in between is newer than the time, never older.
        """
        cameras = getattr(self._device, "cameras", None) or {}
        stamps = [getattr(camera, "latest_timestamp", None) for camera in cameras.values()]
        ages = [time.perf_counter() - stamp for stamp in stamps if stamp is not None]
        return clock.now() - max(ages) if ages else np.inf

    def _standing(self) -> dict[str, float]:
        """Return the action that keeps the pose that was measured when the robot was last moved."""
        if self._still is None:
            self._still = self._at_rest(self._last_seen()[1])
        return self._still

    def _moved_since(self) -> bool:
        """Return True if a command was sent after the last measurement of the pose."""
        return self._last_seen()[0] < self._sent_at

    def _look_in_time(self) -> None:
        """Measure the pose; if that takes too long or fails, keep the last measured pose."""

        def look() -> None:
            with contextlib.suppress(Exception):
                self._look()

        looking = threading.Thread(target=look, name="look", daemon=True)
        looking.start()
        looking.join(_PATIENCE_S)

    def _last_seen(self) -> tuple[float, dict[str, float]]:
        if self._measured is None:
            raise RobotError("LeRobot's robot is not connected: call connect() first")
        return self._measured

    def _at_rest(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Return the action that keeps the robot at its measured pose."""
        at_rest = {}
        for name in self.action_names:
            if name in self._rest:
                at_rest[name] = float(self._rest[name])
            elif name.endswith(_SPEEDS):
                at_rest[name] = 0.0
            elif name in self._grippers and name in self._sent:
                at_rest[name] = self._sent[name]
            else:
                at_rest[name] = float(measured[name])
        return at_rest

    def _send_targets(self, action: dict[str, float]) -> None:
        if not all(map(isfinite, action.values())):
            raise RobotError(f"the action {action} is not finite; it was not sent")
        self._sent_at = clock.now()
        self._device.send_action(dict(action))
        self._sent = action

    # ---- checks before connecting ---------------------------------------------------------

    def _check(self) -> None:
        if self._at_stop not in ("pose", "torque_off"):
            raise UserError(f"at_stop is '{self._at_stop}'; expected pose or torque_off")
        if self._at_stop == "torque_off" and not buses_of(self._device):
            raise UserError(
                f"at_stop is torque_off, but LeRobot's '{self._type}' has no bus whose torque can be "
                "switched off"
            )
        for word, names in (("rest", self._rest), ("grippers", self._grippers)):
            unknown = [name for name in names if name not in self.action_names]
            if unknown:
                raise UserError(
                    f"{word} contains '{unknown[0]}', which is not an action; actions are "
                    f"{', '.join(self.action_names)}"
                )
        for name in self.action_names:
            if not (name in self._numbers or name in self._rest or name.endswith(_SPEEDS)):
                raise UserError(
                    f"the action '{name}' is not among the observations, so it is unknown how "
                    "to keep the robot at rest: give its value at rest, --robot-arg "
                    f"'rest={{\"{name}\": 0}}'"
                )

    def _set_limits(self) -> None:
        low, high = ranges_of(self._device, self.action_names)
        self.limits = ActionLimits(low=low, high=high)


def _is_shape(feature: Any) -> bool:
    return isinstance(feature, (tuple, list))


def _key(name: str, shape: Any) -> str:
    """Return the name that an array of LeRobot's features has in converted datasets."""
    return f"{name}_image" if len(shape) == 3 else name
