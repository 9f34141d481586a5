"""Read the observations of an episode, and decide whether an observation is valid for acting.

``Safety`` has the settings that determine when the control loop holds the robot and when it stops the robot. A measured
pose is invalid in five cases. It exceeds the action limits by more than a margin; it is further from the last measured
pose than three times the speed limit allows; it stays bit-identical for several steps in which the commands ask for
clear motion; all of its numbers stay the same up to noise for twice as long; or a number that had sensor noise before
has none. An object in the gripper, contact, and a robot that is moved back or guided by hand are not faults.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.robot.cameras import CameraWatch
from imitate.deploy.robot.driver import DriverError, Vector, observed, pose_of
from imitate.deploy.robot.limits import ActionLimits
from imitate.deploy.robot.robot import Observation, Robot
from imitate.errors import RobotError, UserError
from imitate.system import clock


@dataclass(frozen=True)
class Safety:
    """Settings that determine when to hold and when to stop. Defaults suit an arm at 10 to 30 Hz.

    Attributes:
        max_age_periods: an observation is too old for acting if its age exceeds this number of control periods,
            ``max_age_s``, and one and a half periods of the robot's slowest camera (:attr:`Robot.camera_hz`).
        max_age_s: seconds, see ``max_age_periods``.
        hold_s: seconds without an action of the policy after which the episode ends.
        late: number of late steps among the last ``late_of`` that ends the episode; 0 to allow any number.
        late_of: number of latest steps among which late steps are counted.
        watchdog_s: seconds without a finished step after which another thread stops the robot, but at least three
            control periods.
        frozen: number of steps with identical images, over at least half a second, after which a camera counts as
            frozen; 0 disables the check.
        frozen_pose: number of steps with clearly moving commands but a bit-identical measured pose after which the pose
            is invalid; 0 disables the check.
        first_action: ``approach`` a first action far from the current pose within the limits, or ``refuse`` it.
        stop_attempts: number of attempts if a stop raises an error.
        stop_above: quantile of the policy's uncertainty in demonstrations (:class:`imitate.policy.uncertainty.\
Calibration`) above which the robot is stopped; with 1 it never is.
        ask_above: quantile of the policy's uncertainty above which the robot holds its pose until a person acts at the
            teleoperator; with 1 it never does.
        unsure_steps: number of successive steps above ``stop_above`` or ``ask_above`` after which the robot stops or
            holds.
        most_cost: cost predicted by the policy (``cost`` of its extras) above which the robot is stopped.

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
    stop_above: float = 1.0
    ask_above: float = 1.0
    unsure_steps: int = 3
    most_cost: float = math.inf

    def oldest_s(self, period_s: float, robot: Robot) -> float:
        """Return the largest age of an observation for acting; infinite if time stops between actions."""
        if robot.in_step:
            return math.inf
        camera_s = 0.0 if robot.camera_hz is None else 1.5 / robot.camera_hz
        return max(self.max_age_periods * period_s, self.max_age_s, camera_s)

    def __post_init__(self) -> None:
        for name in ("max_age_periods", "max_age_s", "hold_s", "watchdog_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UserError(f"{name} is {value}; wanted a finite number above 0")
        for name in ("stop_above", "ask_above"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise UserError(
                    f"{name} is {getattr(self, name)}; wanted a quantile above 0, at most 1"
                )
        for name, least in (
            ("stop_attempts", 1),
            ("unsure_steps", 1),
            ("late", 0),
            ("frozen", 0),
            ("frozen_pose", 0),
        ):
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}; wanted at least {least}")
        if self.late > self.late_of:
            raise UserError(
                f"late is {self.late}, but of late_of={self.late_of} steps no more can be late than {self.late_of}: "
                f"set late_of to at least {self.late}, or late to 0 to allow any number of late steps"
            )
        if self.first_action not in ("approach", "refuse"):
            raise UserError(f"first_action is '{self.first_action}'; wanted approach or refuse")


_FASTER = 3.0
"""Factor by which a measured pose may move faster than commands."""
_GLANCE = 2.0
"""Number of control periods without a reading that count as a gap, after which two readings must agree."""
_MOVES = 0.002
"""Fraction of a dimension's range by which commands must move per step to count as motion."""
_CLEAR = 0.02
"""Fraction of a dimension's range by which commands must move in total to count as clear motion."""
_ASKED = 0.05
"""Fraction of a dimension's range by which commands must move before a noisy pose can count as not following them."""
_DEAF_S = 1.0
"""Seconds for which commands must move by ``_ASKED`` before a noisy pose can count as not following them."""
_NOISY = 10
"""Number of successive readings, each different, by which a number at rest shows that its sensor has noise."""
_REST = 0.005
"""A noisy number counts as at rest if its readings are within this fraction of its range."""
_REVERSALS = 3
"""Smallest number of times that the change of these readings reverses. An encoder that flickers between two ticks has
no new readings, and an arm that comes to rest does not reverse, or its changes get smaller."""


_POSE, _JUMPED = "the measured pose", "has jumped"
_JUMP = f"{_POSE} {_JUMPED}"


class MeasuredPoses:
    """Checks each measured pose of an episode.

    Args:
        limits: limits of the robot.
        period_s: control period.
        frozen: number of steps with clearly moving commands but a bit-identical pose after which it is a fault; 0
            disables the check.
        names: names of the dimensions of a pose, for messages, or None to use indices.
    """

    def __init__(
        self,
        limits: ActionLimits,
        period_s: float,
        frozen: int,
        names: Sequence[str] | None = None,
    ) -> None:
        self._limits, self._period_s = limits, period_s
        self._names = names if names is not None and len(names) == limits.size else None
        self._declared: dict[tuple[str, tuple[int, ...]], str] = {}
        self._noise = SensorNoise(limits, frozen)
        self._reach = _reach(limits, period_s)
        self._stillness = Stillness(limits, frozen, period_s)
        self._trusted: Vector | None = None
        self._last: Vector | None = None
        self._seen_s, self._is_free = 0.0, True

    @property
    def are_bounded(self) -> bool:
        """Return True if the speed is limited, so that jumps can be detected."""
        return self._reach is not None

    def pause(self) -> None:
        """Allow the robot to be moved by hand: the next pose is trusted only after two readings agree."""
        self._is_free = True

    def commanded(self, action: Vector) -> None:
        """Record a sent action (A,)."""
        self._stillness.commanded(action)

    def fault(self, pose: Vector | None, seen: Observation, now_s: float) -> str:
        """Return the reason why a measured pose is invalid, or ''.

        Args:
            pose: (A,) finite pose, or None if the robot does not provide it.
            seen: observation with the pose.
            now_s: time of :mod:`imitate.system.clock` at which it arrived.
        """
        if pose is None:
            return "" if self._trusted is None else "the robot does not report its pose any more"
        outside = self._limits.far_outside(pose)
        if outside.any():
            return self._words("is far outside the limits", outside, "at", pose)
        gone = self._gone(pose, now_s)
        if gone is not None:
            return self._words(_JUMPED, gone, "to", pose)
        self._trusted, self._is_free = pose, False
        silent = self._noise.silent(pose)
        if silent.any():
            return self._words(
                "repeats itself exactly, without the sensor's noise", silent, "at", pose
            )
        if self._stillness.is_frozen(pose, seen):
            return "the measured pose does not change although commands move it"
        if self._stillness.is_deaf(pose):
            return "the measured pose does not follow the commands: is the robot enabled?"
        return ""

    def _words(self, fault: str, dims: NDArray[np.bool_], word: str, pose: Vector) -> str:
        """Describe a fault of some numbers with their first readings; the text is the same in all later steps."""
        places = tuple(np.flatnonzero(dims).tolist())
        if (fault, places) not in self._declared:
            names = [
                f"number {place}" if self._names is None else self._names[place] for place in places
            ]
            shown = ", ".join(
                f"{name} {word} {pose[place]:.4g}"
                for name, place in zip(names, places, strict=True)
            )
            self._declared[fault, places] = f"{_POSE} {fault}" + (f": {shown}" if shown else "")
        return self._declared[fault, places]

    def _gone(self, pose: Vector, now_s: float) -> NDArray[np.bool_] | None:
        """Return (A,) True where a pose has jumped away from the last trusted pose, or None if it has not jumped.

        After a gap a larger change is possible, if two readings in a row agree. But a gap after a reading that had
        already jumped does not explain the jump.
        """
        trusted, before = self._trusted, self._last
        passed_s = max(now_s - self._seen_s, self._period_s)
        self._last, self._seen_s = pose, now_s
        if self._reach is None or trusted is None:
            return None
        if before is trusted:
            self._blind_s = passed_s
        if self._near(trusted, pose, self._period_s if before is not trusted else passed_s):
            return None
        gone = np.abs(pose - trusted)
        is_gap = self._blind_s >= _GLANCE * self._period_s
        reach = self._reach * (self._blind_s / self._period_s)
        may_be = self._is_free or is_gap and bool((gone <= reach).all())
        if may_be and self._near(before, pose, passed_s):
            return None
        found: NDArray[np.bool_] = gone > self._reach
        return found

    def _near(self, before: Vector | None, pose: Vector, passed_s: float) -> bool:
        assert self._reach is not None and before is not None
        periods = min(passed_s / self._period_s, _GLANCE)
        return bool((np.abs(pose - before) <= self._reach * periods).all())


class SensorNoise:
    """Detects a number that repeats one or two readings although its sensor has noise.

    Args:
        limits: limits of the robot.
        frozen: number of repetitions after which it is a fault; 0 disables the check.
    """

    def __init__(self, limits: ActionLimits, frozen: int) -> None:
        self._frozen, self._rest = frozen, _REST * limits.ranges()
        self._readings: list[Vector] = []
        self._is_noisy = np.zeros(limits.size, dtype=bool)

    def silent(self, pose: Vector) -> NDArray[np.bool_]:
        """Return (A,) True where a number with sensor noise has had at most two different values for too long."""
        size = self._frozen + 2
        self._readings = [*self._readings, pose][-max(size, _NOISY) :]
        if len(self._readings) >= _NOISY:
            self._is_noisy |= _has_noise(np.array(self._readings[-_NOISY:]), self._rest)
        last = np.sort(self._readings[-size:], axis=0)
        found: NDArray[np.bool_] = self._is_noisy & ((np.diff(last, axis=0) > 0).sum(axis=0) <= 1)
        return found & bool(self._frozen and len(last) == size)


def _has_noise(readings: NDArray[np.float64], rest: Vector) -> NDArray[np.bool_]:
    """Return (A,) True where successive readings (T, A) show a number at rest whose sensor has noise."""
    changes = np.diff(readings, axis=0)
    reversals = (changes[1:] * changes[:-1] < 0).sum(axis=0)
    sizes = np.abs(changes)
    lasts = sizes[len(sizes) // 2 :].max(axis=0) >= 0.5 * sizes.max(axis=0)
    is_new = (np.diff(np.sort(readings, axis=0), axis=0) > 0).all(axis=0)
    found: NDArray[np.bool_] = (
        is_new & lasts & (reversals >= _REVERSALS) & (np.ptp(readings, axis=0) <= rest)
    )
    return found


class Stillness:
    """Detects a sensor that repeats its last reading.

    A single joint that does not follow may be blocked by an object or by contact. So a fault needs two numbers that do
    not change although commanded to move, or one that was commanded to both sides of its position. Numbers of a pose
    that are not measured (0 for relative actions, the last command of a gripper) are left out; if none remain, a fault
    needs bit-identical vectors in the observation that moved before.

    Args:
        limits: limits of the robot.
        frozen: see :class:`MeasuredPoses`.
        period_s: control period.
    """

    def __init__(self, limits: ActionLimits, frozen: int, period_s: float) -> None:
        self._frozen, self._deaf = frozen, max(2 * frozen, math.ceil(_DEAF_S / period_s))
        self._range = limits.ranges()
        self._is_measured = np.zeros(limits.size, dtype=bool)
        self._is_nonzero = np.zeros(limits.size, dtype=bool)
        self._pose: Vector | None = None
        self._vectors: dict[str, bytes] = {}
        self._is_alive = False
        self._sent: Vector | None = None
        self._since_pose, self._since_vectors = _Commands(), _Commands()
        self._place: Vector | None = None
        self._since_place = _Commands()

    def commanded(self, action: Vector) -> None:
        """Record a sent action (A,)."""
        change = np.zeros_like(action) if self._sent is None else action - self._sent
        since = (self._since_pose, change), (self._since_place, change)
        for wishes, way in (*since, (self._since_vectors, action)):
            wishes.add(action, bool((np.abs(way) >= _MOVES * self._range).any()))
        self._sent = action

    def is_frozen(self, pose: Vector, seen: Observation) -> bool:
        """Return True if this pose (A,) and its observation repeat earlier ones for too long."""
        if not self._frozen:
            return False
        vectors = {
            key: np.asarray(value).tobytes()
            for key, value in seen.values.items()
            if np.ndim(value) == 1 and np.asarray(value).dtype.kind == "f"
        }
        before, self._pose = self._pose, pose
        known = self._is_measured
        self._is_nonzero = self._is_nonzero | (pose != 0.0)
        if self._sent is not None:
            self._is_measured = known | (pose != 0.0) & (pose != self._sent)
        measured = self._is_measured
        if (measured != known).any() or before is None or (pose != before)[measured].any():
            self._since_pose = _Commands()
        if vectors != self._vectors:
            self._is_alive |= bool(self._vectors)
            self._vectors, self._since_vectors = vectors, _Commands()
        if measured.any():
            room = _CLEAR * self._range
            moved = self._since_pose.moved(room) & measured
            crossed = self._since_pose.crossed(pose, room) & measured
            return self._since_pose.count >= self._frozen and self._are_too_many(moved, crossed)
        zero = np.zeros_like(pose)
        moved = self._since_vectors.reached(_CLEAR * self._range)
        crossed = self._since_vectors.crossed(zero, _CLEAR * self._range)
        is_relative = not self._is_nonzero[: max(len(pose) - 1, 1)].any()
        return (
            is_relative
            and self._is_alive
            and bool(vectors)
            and self._since_vectors.count >= self._frozen
            and self._are_too_many(moved, crossed)
        )

    def is_deaf(self, pose: Vector) -> bool:
        """Return True if all measured numbers of this pose (A,) stay the same up to noise, unlike the commands.

        Call it after :meth:`is_frozen` in each step.
        """
        measured = self._is_measured
        away = None if self._place is None else np.abs(pose - self._place) > _REST * self._range
        if away is None or away[measured].any() or not measured.any():
            self._place, self._since_place = pose, _Commands()
            return False
        room = _ASKED * self._range
        moved = self._since_place.moved(room) & measured
        crossed = self._since_place.crossed(pose, room) & measured
        is_long = bool(self._frozen) and self._since_place.count >= self._deaf
        return is_long and self._are_too_many(moved, crossed)

    @staticmethod
    def _are_too_many(moved: NDArray[np.bool_], crossed: NDArray[np.bool_]) -> bool:
        return int(moved.sum()) >= 2 or bool(crossed.any())


class _Commands:
    """Range of the commands since the last change of a reading."""

    def __init__(self) -> None:
        self.count = 0
        self._ends: tuple[Vector, Vector] | None = None  # lowest and highest command

    def add(self, action: Vector, is_moving: bool) -> None:
        self.count += is_moving
        low, high = self._ends or (action, action)
        self._ends = np.minimum(low, action), np.maximum(high, action)

    def moved(self, room: Vector) -> NDArray[np.bool_]:
        """Return (A,) True where the commands have moved by at least ``room`` (A,)."""
        if self._ends is None:
            return np.zeros(len(room), dtype=bool)
        low, high = self._ends
        found: NDArray[np.bool_] = high - low >= room
        return found

    def reached(self, room: Vector) -> NDArray[np.bool_]:
        """Return (A,) True where relative commands were at least as large as ``room`` (A,)."""
        if self._ends is None:
            return np.zeros(len(room), dtype=bool)
        low, high = self._ends
        found: NDArray[np.bool_] = np.maximum(high, -low) >= room
        return found

    def crossed(self, pose: Vector, room: Vector) -> NDArray[np.bool_]:
        """Return (A,) True where the commands were on both sides of a position, at least ``room`` (A,) away from it."""
        if self._ends is None:
            return np.zeros(len(pose), dtype=bool)
        low, high = self._ends
        found: NDArray[np.bool_] = (low <= pose - room) & (high >= pose + room)
        return found


def _reach(limits: ActionLimits, period_s: float) -> Vector | None:
    """Return (A,) the largest change of a measured pose per control period, or None if the speed is unlimited."""
    ways = [] if limits.step is None else [np.asarray(limits.step)]
    ways += [] if limits.speed is None else [np.asarray(limits.speed) * period_s]
    return _FASTER * np.minimum.reduce(ways) if ways else None


_FROZEN_S = 0.5
"""Shortest time, in seconds, after which identical images mean a frozen camera: cameras may be slower than control."""
_CONFIRM_S = 0.1
"""Shortest time in seconds for which further readings confirm the first pose before anything moves."""
_CONFIRM = 2
"""Smallest number of readings that confirm the first pose."""
_AHEAD_S = 0.02
"""Seconds by which a time stamp may be in the future, for example if it is computed from a camera's clock."""
_ANOTHER_S = 10.0
"""Age of an observation, in seconds, from which its stamp may come from another clock."""


class Observer:
    """Reads a robot's observations.

    Args:
        robot: connected robot.
        period_s: control period.
        safety: settings that determine which observations are invalid.
    """

    def __init__(self, robot: Robot, period_s: float, safety: Safety) -> None:
        self._robot, self._period_s, self._patience_s = robot, period_s, safety.hold_s
        self._max_age_s = safety.oldest_s(period_s, robot)
        self._cameras = CameraWatch(safety.frozen, 0.0 if robot.in_step else _FROZEN_S)
        self.poses = MeasuredPoses(robot.limits, period_s, safety.frozen_pose, robot.action_names)
        self._last: Observation | None = None
        self._came_s, self._newest_s = 0.0, -math.inf
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._types: dict[str, np.dtype[Any]] = {}
        self.pose: Vector | None = None
        """(A,) action that keeps the pose of the newest usable observation; None if unknown."""
        self.unstamped = False
        """True if observations have no time stamp, so that their age is not checked."""

    def first(self) -> Observation:
        """Return the observation before the episode; later ones must have the same keys and shapes.

        Raises:
            RobotError: the robot could not observe.
        """
        try:
            seen = observed(self._robot)
            self.pose = pose_of(self._robot, seen)
        except DriverError as error:
            raise RobotError(f"the robot was not moved: {error}") from error
        self._shapes = _shapes(seen)
        self._types = {key: value.dtype for key, value in seen.values.items()}
        for key, declared in self._robot.observation_shapes.items():
            found = self._shapes.get(key)
            if found != tuple(declared):
                raise RobotError(
                    f"the robot was not moved: observe() gives '{key}' as {found or 'nothing'}, but "
                    f"{type(self._robot).__name__}.observation_shapes has {tuple(declared)}: correct one of them"
                )
        self._last, self._came_s = seen, clock.now()
        return seen

    def begin(self) -> None:
        """Read on until some poses in a row agree, before anything moves: the first packets may be old or mixed up.

        The robot may still be moved by hand until the next pose agrees.

        Raises:
            RobotError: the poses jump for longer than ``Safety.hold_s``.
        """
        if self._last is None or self.poses.fault(self.pose, self._last, clock.now()):
            return
        self.poses.pause()
        if self._robot.in_step or self.pose is None or not self.poses.are_bounded:
            return
        agreed, began = 0, clock.now()
        while agreed < max(_CONFIRM, math.ceil(_CONFIRM_S / self._period_s)):
            clock.sleep(self._period_s)
            fault = self.next()[1]
            self.poses.pause()
            if not fault.startswith(_JUMP):
                agreed += 1
            elif clock.now() - began > self._patience_s:
                raise RobotError(
                    f"the robot was not moved: its first readings do not agree: {fault}"
                )
            else:
                agreed = 0

    def next(self) -> tuple[Observation, str]:
        """Return the newest observation, and the reason why it must not be used for acting ('' if it may).

        If the robot could not observe, the previous observation is returned.

        Raises:
            RobotError: a camera is frozen, or the robot reports a failure.
        """
        before = self.first() if self._last is None else self._last
        try:
            seen = observed(self._robot)
            fault = self._changed(seen)
            pose = None if fault else pose_of(self._robot, seen)
        except DriverError as error:  # drivers may raise an error even for a single lost frame
            return before, str(error)
        now = clock.now()
        self.unstamped |= seen.stamp_s is None
        if fault:
            return before, fault
        fault = self._cameras.fault(seen, now) or self.poses.fault(pose, seen, now)
        if fault:
            return before, fault
        self._last, self._came_s, self.pose = seen, now, pose
        fault = self.fault_of_age()
        if seen.stamp_s is not None and not fault:
            if seen.stamp_s < self._newest_s - _AHEAD_S:
                fault = "the observation's stamp is earlier than the previous observation's"
            self._newest_s = max(self._newest_s, float(seen.stamp_s))
        return seen, fault

    def fault_of_age(self) -> str:
        """Return the reason why the newest observation is too old for acting or has a wrong stamp, or ''.

        The age of an observation without a time stamp counts from its arrival.
        """
        stamp_s = None if self._last is None else self._last.stamp_s
        age_s = clock.now() - (self._came_s if stamp_s is None else stamp_s)
        if math.isnan(age_s) or age_s < -_AHEAD_S:
            return "the observation's stamp is not from time.monotonic()"
        if age_s > _ANOTHER_S:
            return (
                f"the observation is more than {_ANOTHER_S:g} s old by its stamp: the driver "
                "hangs, or its stamps are not from time.monotonic()"
            )
        return "the observation is old" if age_s > self._max_age_s else ""

    def _changed(self, seen: Observation) -> str:
        """Describe keys or shapes that differ from those at the beginning."""
        now = _shapes(seen)
        for key in sorted(self._shapes.keys() | now.keys()):
            if self._shapes.get(key) != now.get(key):
                was, is_ = (str(found.get(key, "absent")) for found in (self._shapes, now))
                return f"the observation '{key}' was {was} at the beginning and is {is_}"
        for key, value in seen.values.items():
            if value.ndim == 3 and value.dtype != self._types[key]:  # white is 255 or 1
                return f"the image '{key}' was {self._types[key]} at the beginning and is {value.dtype}"
        return ""


def not_finite(observation: Observation, keys: tuple[str, ...]) -> str:
    """Describe an array that is not finite, or return ''; ``keys`` restricts the check to some arrays."""
    values = observation.values
    for key in keys or values:
        if key in values and not np.isfinite(values[key]).all():
            return f"observation '{key}' is not finite"
    return ""


def _shapes(observation: Observation) -> dict[str, tuple[int, ...]]:
    return {key: np.shape(value) for key, value in observation.values.items()}
