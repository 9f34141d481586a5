"""Limits on the actions sent to a robot: box, step, speed, acceleration, jerk, distance from the measured pose.

The filter keeps the commanded trajectory within limits for any policy. It is not a safety function: it runs in a user
process and does not consider obstacles.

Limits are in the units of the action. They bound the change of the *command*. For targets (joint angles, poses) these
are the robot's own speed and acceleration. For relative actions the box bounds the speed, and ``speed`` the
acceleration. ``jerk`` is meant for targets.

Trajectories of limited jerk are computed one control step at a time by ruckig (extra ``limits``): Berscheid and Kröger,
Jerk-limited Real-time Trajectory Generation with Arbitrary Target States, arXiv:2105.04830.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate.errors import UserError
from imitate.system.extras import missing


class JerkTrajectory:
    """Fastest trajectory to a target that may change at each control step.

    Dimensions are not synchronized, because synchronized dimensions may overshoot a target and leave the box.

    Args:
        speed: (A,) largest speed.
        acceleration: (A,) largest acceleration.
        jerk: (A,) largest jerk.
        period_s: control period.

    Raises:
        UserError: ruckig is not installed.
    """

    def __init__(self, speed: Vector, acceleration: Vector, jerk: Vector, period_s: float) -> None:
        try:
            import ruckig
        except ImportError as error:
            raise UserError(f"a limit of jerk: {missing('limits', error)}") from error
        size = len(speed)
        self._ruckig = ruckig.Ruckig(size, period_s)
        self._input = ruckig.InputParameter(size)
        self._output = ruckig.OutputParameter(size)
        self._input.max_velocity = speed
        self._input.max_acceleration = acceleration
        self._input.max_jerk = jerk
        self._input.synchronization = ruckig.Synchronization.No
        self._good = (ruckig.Result.Working, ruckig.Result.Finished)

    def rest(self, at: Vector) -> None:
        """Begin at rest at a position (A,)."""
        self._input.current_position = at
        self._input.current_velocity = self._input.current_acceleration = np.zeros_like(at)

    def next(self, target: Vector) -> Vector | None:
        """Return the position (A,) after the next control step towards a target, or None if there is no trajectory.

        The state changes only with :meth:`step`.
        """
        self._input.target_position = target
        if self._ruckig.update(self._input, self._output) not in self._good:
            return None
        return np.array(self._output.new_position)

    def step(self) -> None:
        """Take the step that :meth:`next` returned."""
        self._output.pass_to_input(self._input)


Vector = NDArray[np.float64]

Answer = Literal["scale", "clip", "refuse"]
"""Treatment of an action whose change is too large: scale the change, clip each dimension, or raise an error."""


_MOTION = ("step", "speed", "acceleration", "jerk")
"""Limits on the change of the command."""
_OUTSIDE = 0.1
"""Fraction of the range by which a robot may exceed its limits while it is moved back or guided by hand."""
_NOISE = 0.01
"""Fraction of the range by which a measured pose may exceed a limit because of sensor noise, as for an open gripper."""


class LimitError(RuntimeError):
    """An action was not finite, or exceeded limits whose ``answer`` is ``refuse``."""


@dataclass(frozen=True)
class ActionLimits:
    """Limits of one robot's actions. Each is a number for all A dimensions or one value for each; None for no limit.

    Attributes:
        low, high: (A,) lowest and highest action.
        margin: distance to keep from ``low`` and ``high``, at least 0.
        step: largest change of the command from one control step to the next.
        speed: largest change of the command per second.
        acceleration: largest change of the speed per second; with it the command also slows down before the edge of the
            box.
        from_measured: largest distance of the command from the measured pose, if the robot provides it.
        answer: ``scale`` a step that is too large as a whole, ``clip`` it dimension by dimension, or ``refuse`` it.
            A command outside the box is moved to its edge, or refused with ``refuse``.
        jerk: largest change of the acceleration per second, in addition to ``speed`` and ``acceleration``; the command
            then follows a smooth trajectory, each dimension separately. Needs ruckig (extra ``limits``) and a robot
            that provides its pose.
    """

    low: ArrayLike
    high: ArrayLike
    margin: ArrayLike = 0.0
    step: ArrayLike | None = None
    speed: ArrayLike | None = None
    acceleration: ArrayLike | None = None
    from_measured: ArrayLike | None = None
    answer: Answer = "scale"
    jerk: ArrayLike | None = None

    def __post_init__(self) -> None:
        low = np.atleast_1d(np.asarray(self.low, dtype=np.float64))
        if low.ndim != 1:
            raise UserError(
                f"low has shape {low.shape}; wanted one value for each action dimension"
            )
        object.__setattr__(self, "low", low)
        for name in ("high", "margin", *_MOTION, "from_measured"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, self._vector(name, value, len(low)))
        for name in (*_MOTION, "from_measured"):
            value = getattr(self, name)
            if value is not None and not (value > 0).all():
                raise UserError(f"{name} is {_shown(value)}; wanted numbers above 0")
        if not np.isfinite(self.margin).all() or not (np.asarray(self.margin) >= 0).all():
            raise UserError(f"margin is {_shown(self.margin)}; wanted finite numbers, at least 0")
        if not self._has_room():  # the comparison is false with NaN, too
            raise UserError(
                f"low is {_shown(self.low)} and high is {_shown(self.high)} with a margin of "
                f"{_shown(self.margin)}: each high must be above its low by more than two "
                "margins"
            )
        self._check_jerk()
        if self.answer not in ("scale", "clip", "refuse"):
            raise UserError(
                f"answer (to actions beyond the limits) is '{self.answer}'; wanted scale, clip or refuse"
            )

    def _check_jerk(self) -> None:
        for name in ("speed", "acceleration", "jerk") if self.jerk is not None else ():
            value = getattr(self, name)
            if value is None or not np.isfinite(value).all():
                words = "none" if value is None else _shown(value)
                raise UserError(
                    f"{name} is {words}: a limit of jerk also needs finite limits of speed and acceleration"
                )

    @staticmethod
    def _vector(name: str, value: ArrayLike, size: int) -> Vector:
        array = np.asarray(value, dtype=np.float64)
        if array.ndim > 1 or (array.ndim == 1 and len(array) != size):
            raise UserError(f"{name} has shape {array.shape}; wanted one number, or {size} of them")
        return np.broadcast_to(array, (size,)).copy()

    def _has_room(self) -> bool:
        return bool((np.asarray(self.high) - self.low > 2 * np.asarray(self.margin)).all())

    @property
    def size(self) -> int:
        """Number A of action dimensions."""
        return len(np.asarray(self.low))

    def ranges(self) -> Vector:
        """Range (A,) between ``low`` and ``high``; 1 if one of them is infinite."""
        with np.errstate(invalid="ignore"):
            distance = np.asarray(self.high) - np.asarray(self.low)
        found: Vector = np.where(np.isfinite(distance), distance, 1.0)
        return found

    def far_outside(self, pose: ArrayLike) -> NDArray[np.bool_]:
        """Return (A,) True where a measured pose exceeds ``low`` or ``high`` by more than a tenth of the range."""
        low, high, margin = map(np.asarray, (self.low, self.high, self.margin))
        room = np.maximum(_OUTSIDE * self.ranges(), margin)
        found: NDArray[np.bool_] = (low - pose > room) | (pose - high > room)
        return found

    def looser_than(self, own: ActionLimits) -> list[str]:
        """Name the limits that are looser than those of ``own``, with both values.

        Raises:
            UserError: ``own`` has another number of action dimensions.
        """
        if self.size != own.size:
            raise UserError(f"the limits are for {self.size} numbers, the robot's for {own.size}")
        found = []
        low, high, margin, own_margin = map(
            np.asarray, (self.low, self.high, self.margin, own.margin)
        )
        if (low < own.low).any():
            found.append(f"low {_shown(low)} (the robot's own: {_shown(own.low)})")
        if (high > own.high).any():
            found.append(f"high {_shown(high)} (the robot's own: {_shown(own.high)})")
        if not found and (
            (low + margin < own.low + own_margin).any()
            or (high - margin > own.high - own_margin).any()
        ):
            found.append(f"margin {_shown(margin)} (the robot's own: {_shown(own_margin)})")
        for name in (*_MOTION, "from_measured"):
            mine, theirs = getattr(self, name), getattr(own, name)
            if theirs is not None and (mine is None or (mine > theirs).any()):
                words = "none" if mine is None else _shown(mine)
                found.append(f"{name} {words} (the robot's own: {_shown(theirs)})")
        if own.answer == "refuse" and self.answer != "refuse":
            found.append(f"answer {self.answer} (the robot's own: refuse)")
        return found

    def scaled(self, factor: float) -> ActionLimits:
        """Return the limits with step, speed and acceleration multiplied by ``factor`` in (0, 1], for ``--slow``."""
        if not 0 < factor <= 1:
            raise UserError(
                f"the factor of slow motion is {factor}; wanted a number above 0, at most 1"
            )
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        if factor < 1 and all(values[name] is None for name in _MOTION):
            raise UserError(
                f"slow motion by {factor:g} changes nothing: the limits have none of {', '.join(_MOTION)}"
            )
        for name in _MOTION:
            if values[name] is not None:
                values[name] = np.asarray(values[name]) * factor
        return ActionLimits(**values)


@dataclass
class LimitCounts:
    """Number of actions changed by each limit, and the largest change of a dimension, in the units of the action."""

    actions: int = 0
    changed: Counter[str] = field(default_factory=Counter)
    largest: float = 0.0

    def __str__(self) -> str:
        parts = [f"{name} {count}" for name, count in sorted(self.changed.items())]
        return f"of {self.actions} actions limited by: {', '.join(parts) or 'nothing'}"


class LimitFilter:
    """Applies :class:`ActionLimits` to a stream of actions at a fixed rate.

    The order of the limits: finite values, box, distance from the measured pose, step and speed, acceleration and
    braking, box again.
    Step, speed and acceleration are relative to the last *commanded* action, so that the filter does not follow a robot
    that lags.

    Args:
        limits: the limits.
        rate_hz: control steps per second.
    """

    def __init__(self, limits: ActionLimits, rate_hz: float) -> None:
        if not (np.isfinite(rate_hz) and rate_hz > 0):
            raise UserError(f"the control rate is {rate_hz} Hz; wanted a number above 0")
        self.limits, self.counts = limits, LimitCounts()
        self._period = 1.0 / rate_hz
        margin = np.asarray(limits.margin)
        self._low, self._high = np.asarray(limits.low) + margin, np.asarray(limits.high) - margin
        self._step = _least(limits.step, _times(limits.speed, self._period))
        self._gain = _times(limits.acceleration, self._period * self._period)
        self._reach: Vector | None = _times(limits.from_measured, 1.0)
        self._smooth = _smooth(limits, self._step, self._period)
        self._last: Vector | None = None
        self._change = np.zeros(limits.size)

    @property
    def last(self) -> Vector | None:
        """The last commanded action (A,), or None before the first."""
        return None if self._last is None else self._last.copy()

    def start(self, at: ArrayLike | None) -> None:
        """Begin at rest, with new :attr:`counts`.

        Args:
            at: (A,) action that keeps the robot's current pose, from which the change of the first action is limited.
                With None the first action is only moved into the box.

        Raises:
            LimitError: ``at`` is not finite, has another size, is outside the box by more than sensor noise, or is
                None although the jerk is limited.
        """
        self._last, self._change = None, np.zeros(self.limits.size)
        self.counts = LimitCounts()
        if at is None:
            if self._smooth is not None:
                raise LimitError(
                    "a limit of jerk needs the robot's initial pose, but this robot does not provide it (Robot.pose)"
                )
            return
        pose = self._checked(at, "the present pose")
        low, high = np.asarray(self.limits.low), np.asarray(self.limits.high)
        noise = _NOISE * self.limits.ranges()
        outside = (low - pose > noise) | (pose - high > noise)
        if outside.any():
            raise LimitError(
                f"the robot is outside its limits in dimension {', '.join(map(str, np.flatnonzero(outside)))} (at "
                f"{_shown(pose[outside])}, limits {_shown(low[outside])} to {_shown(high[outside])}): move it back by "
                "hand before a policy moves it, or correct pose()"
            )
        self._rest_at(np.clip(pose, low, high))

    def rest(self, at: ArrayLike | None) -> None:
        """Continue from rest, after control steps in which the robot held its pose.

        Args:
            at: (A,) action that keeps the robot's current pose, or None to continue from the last command.

        Raises:
            LimitError: ``at`` is not finite, has another size, or is too far outside the box to be a measurement.
        """
        pose = self._last if at is None else self._checked(at, "the present pose")
        if pose is not None and self.limits.far_outside(pose).any():
            raise LimitError(f"the current pose {_shown(pose)} is far outside the limits")
        self._change = np.zeros(self.limits.size)
        if pose is not None:
            self._rest_at(np.clip(pose, self.limits.low, self.limits.high))

    def _rest_at(self, pose: Vector) -> None:
        self._last = pose.copy()
        if self._smooth is not None:
            self._smooth.rest(pose)

    def boxed(self, action: ArrayLike) -> Vector:
        """Clip the action (A,) to ``low`` and ``high`` with the margin, without limiting its change."""
        inside: Vector = np.minimum(np.maximum(action, self._low), self._high)
        return inside

    def __call__(self, action: ArrayLike, measured: ArrayLike | None = None) -> Vector:
        """Return the action to send.

        Args:
            action: (A,) wanted action.
            measured: (A,) the measured pose in the units of the action, for ``from_measured``.

        Raises:
            LimitError: the action is not finite, has another size, or exceeds limits whose answer is ``refuse``.
                The state of the filter then stays unchanged.
        """
        wanted = self._checked(action, "the action")
        reasons: list[str] = []
        safe = self.boxed(wanted)
        if (safe != wanted).any():
            reasons.append("box")
        if self._reach is not None and measured is not None:
            pose = self._checked(measured, "the measured pose")
            safe = self._shortened(
                safe, pose, self._reach, "distance from the measured pose", reasons
            )
            safe = self.boxed(safe)
        if self._last is not None:
            safe = self._boxed_last(self._within_motion(safe, self._last, reasons), self._last)
        if reasons and self.limits.answer == "refuse":
            raise LimitError(
                f"the action {_shown(wanted)} is beyond: {', '.join(reasons)}; it was not sent"
            )
        if self._smooth is not None:
            self._smooth.step()
        self.counts.actions += 1
        self.counts.changed.update(reasons)
        if reasons:
            self.counts.largest = max(self.counts.largest, float(np.abs(safe - wanted).max()))
        self._change = np.zeros_like(safe) if self._last is None else safe - self._last
        self._last = safe
        return safe.copy()

    def _checked(self, value: ArrayLike, name: str) -> Vector:
        array = np.asarray(value, dtype=np.float64)
        if array.shape != self._low.shape:
            raise LimitError(f"{name} has shape {array.shape}; wanted ({self.limits.size},)")
        if not np.isfinite(array).all():
            raise LimitError(f"{name} is not finite: {_shown(array)}")
        return array

    def _within_motion(self, safe: Vector, last: Vector, reasons: list[str]) -> Vector:
        """Limit the change from the last command."""
        if self._smooth is not None:
            return self._on_trajectory(self._smooth, safe, last, reasons)
        if self._step is not None:
            safe = self._shortened(safe, last, self._step, "step or speed", reasons)
        if self._gain is None:
            return safe
        change = safe - last
        # Slow down in time before the target and the edge of the box, then limit the change of speed.
        towards = _braking(np.abs(change), self._gain)
        limited = np.minimum(np.maximum(change, -towards), towards)
        limited = np.minimum(limited, self._change + self._gain)
        limited = np.maximum(limited, self._change - self._gain)
        room_up = _braking(np.maximum(self._high - last, 0.0), self._gain)
        room_down = _braking(np.maximum(last - self._low, 0.0), self._gain)
        limited = np.minimum(np.maximum(limited, -room_down), room_up)
        if (np.abs(limited - change) > 1e-12).any():
            reasons.append("acceleration")
        commanded: Vector = last + limited
        return commanded

    def _boxed_last(self, command: Vector, last: Vector) -> Vector:
        """Clip the command to the box; one that began within the margin may move out of the margin gradually."""
        low, high = np.minimum(self._low, last), np.maximum(self._high, last)
        inside: Vector = np.minimum(np.maximum(command, low), high)
        return inside

    def _on_trajectory(
        self, smooth: JerkTrajectory, target: Vector, last: Vector, reasons: list[str]
    ) -> Vector:
        """Return the next position on the trajectory to the target."""
        position = smooth.next(target)
        if position is None or not np.isfinite(position).all():
            raise LimitError(
                f"there is no trajectory with limited jerk from {_shown(last)} to {_shown(target)}"
            )
        if (np.abs(position - target) > 1e-9).any():
            reasons.append("speed, acceleration or jerk")
        return position

    def _shortened(
        self, wanted: Vector, origin: Vector, most: Vector, name: str, reasons: list[str]
    ) -> Vector:
        """Move ``wanted`` towards ``origin`` until each dimension differs by at most ``most`` (A,)."""
        change = wanted - origin
        size = np.abs(change)
        if (size <= most).all():
            return wanted
        reasons.append(name)
        if self.limits.answer == "scale":
            change = change * float((most / np.maximum(size, 1e-300)).min())
        shortened: Vector = origin + np.minimum(np.maximum(change, -most), most)
        return shortened


def _braking(distance: Vector, gain: Vector) -> Vector:
    """Return the largest change per step from which a command can still stop within ``distance``.

    Let g be ``gain``, the largest difference of two successive changes. A change c and the k changes that slow it down
    to rest, c - g, ... c - k g, add up to (k + 1) c - g k (k + 1) / 2, with the largest k for which c > k g.
    """
    distance = np.minimum(distance, 1e12 * gain)  # the distance is infinite without limits
    k = np.floor((np.sqrt(1.0 + 8.0 * distance / gain) - 1.0) / 2.0)
    result: Vector = (distance + 0.5 * gain * k * (k + 1.0)) / (k + 1.0)
    return result


def _smooth(limits: ActionLimits, step: Vector | None, period_s: float) -> JerkTrajectory | None:
    """Return the trajectory of limited jerk, or None if the jerk is not limited.

    Args:
        limits: the limits.
        step: (A,) largest change of the command in a control period.
        period_s: control period.
    """
    if limits.jerk is None or step is None:
        return None
    acceleration, jerk = np.asarray(limits.acceleration), np.asarray(limits.jerk)
    return JerkTrajectory(step / period_s, acceleration, jerk, period_s)


def _times(value: ArrayLike | None, factor: float) -> Vector | None:
    return None if value is None else np.asarray(value, dtype=np.float64) * factor


def _least(first: ArrayLike | None, second: Vector | None) -> Vector | None:
    if first is None or second is None:
        return second if first is None else np.asarray(first, dtype=np.float64)
    least: Vector = np.minimum(first, second)
    return least


def _shown(values: ArrayLike) -> str:
    return np.array2string(np.asarray(values), 10_000, 4, separator=", ", threshold=20)
