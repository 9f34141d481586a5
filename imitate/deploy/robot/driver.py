"""Call drivers and devices, check their results, and turn their errors into messages of one line.

A driver may raise any error, even ``SystemExit``, and return any value: None for a lost frame, text, another shape.
KeyboardInterrupt, :class:`RobotError` and :class:`UserError` pass unchanged.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.robot.robot import Guidance, Observation, Robot, Teleoperator
from imitate.errors import RobotError, UserError
from imitate.system import clock
from imitate.system.images import given_array
from imitate.system.user_code import error_words

Vector = NDArray[np.float64]


class DriverError(RobotError):
    """A call of a driver or device raised an error or returned an invalid value."""


def called(function: Callable[..., Any], *args: Any) -> Any:
    """Call a method of a driver or device.

    Raises:
        DriverError: the call raised any error except RobotError, UserError and KeyboardInterrupt.
    """
    try:
        return function(*args)
    except (RobotError, UserError, KeyboardInterrupt):
        raise
    except BaseException as error:  # sys.exit() in a driver must not end the process silently
        raise DriverError(f"{_name(function)}() failed ({error_words(error)})") from error


def awaited(function: Callable[..., Any], *args: Any) -> Any:
    """Call a method that may take long, such as ``connect``; a line on stderr is printed if it does not return.

    Raises:
        DriverError: see :func:`called`.
    """
    returned = threading.Event()
    report_unless(
        returned, LONG_S, f"{_name(function)}() has not returned after {LONG_S:g} s; Ctrl-C ends it"
    )
    try:
        return called(function, *args)
    finally:
        returned.set()


LONG_S = 10.0
"""Seconds after which a call such as ``connect`` that has not returned is reported."""


def report_unless(returned: threading.Event, seconds: float, words: str) -> None:
    """Print ``words`` on stderr from another thread if the event is not set within ``seconds``."""

    def report() -> None:
        if not clock.wait(returned, seconds):
            write_line(words)

    with contextlib.suppress(RuntimeError):  # at the end of the process no threads can be started
        threading.Thread(target=report, name="report of a slow call", daemon=True).start()


def write_line(words: str) -> None:
    """Write a line to stderr at once, because the main thread may hang forever."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # standard error is closed
        sys.stderr.write(f"{words}\n")
        sys.stderr.flush()


def observed(robot: Robot) -> Observation:
    """Return the robot's observation; a plain mapping counts as an observation without a time stamp.

    Raises:
        DriverError: the robot could not observe, or returned an object of another type.
    """
    return checked(called(robot.observe), "observe")


def first_seen(robot: Robot, looks: int = 3) -> Observation:
    """Return the first observation of a newly connected robot, with retries because its first packets may be lost.

    Raises:
        DriverError: the robot could not observe ``looks`` times.
    """
    try:
        return observed(robot)
    except DriverError:
        if looks <= 1:
            raise
    clock.sleep(0.05)
    return first_seen(robot, looks - 1)


def checked(seen: Any, name: str) -> Observation:
    """Convert a driver's value to an observation whose arrays are copies, which the driver cannot change.

    Args:
        seen: an Observation or a mapping.
        name: name of the call that returned it.

    Raises:
        DriverError: the value is neither an Observation nor a mapping of numbers.
    """
    if isinstance(seen, Mapping):
        seen = Observation(seen)
    if not isinstance(seen, Observation):
        raise DriverError(f"{name}() returned {_kind(seen)}, but must return an Observation")
    if not isinstance(seen.values, Mapping):
        raise DriverError(
            f"{name}() returned an Observation of {_kind(seen.values)}, but its values must be a mapping"
        )
    for key, value in seen.values.items():
        if not isinstance(key, str) or not _is_numeric(value):
            raise DriverError(f"{name}() gave '{key}' as {_kind(value)}; wanted numbers")
    if isinstance(seen.stamp_s, bool) or not isinstance(
        seen.stamp_s, int | float | np.number | None
    ):
        raise DriverError(f"{name}() gave a stamp of {_kind(seen.stamp_s)}; wanted seconds")
    return Observation({key: np.array(value) for key, value in seen.values.items()}, seen.stamp_s)


def pose_of(robot: Robot, observation: Observation) -> Vector | None:
    """Return the action (A,) that keeps an observation's pose, or None if the robot does not provide it.

    Raises:
        DriverError: ``pose()`` raised an error, or did not return A finite numbers.
    """
    pose = called(robot.pose, observation)
    if pose is None:
        return None
    size = robot.limits.size
    if not _is_numeric(pose) or np.shape(pose) != (size,):
        raise DriverError(f"pose() gave {_kind(pose)}; wanted {size} numbers")
    if not np.isfinite(pose).all():
        odd, names = np.flatnonzero(~np.isfinite(pose)), robot.action_names
        places = odd if names is None or len(names) != size else [names[place] for place in odd]
        raise DriverError(f"pose() gave numbers that are not finite: {', '.join(map(str, places))}")
    return np.array(pose, dtype=np.float64)


def guided(device: Teleoperator, observation: Observation) -> Guidance:
    """Return the action and the events of a person at a device.

    Raises:
        DriverError: ``guide()`` raised an error, or did not return a Guidance of numbers and words.
    """
    wish = called(device.guide, observation)
    if not isinstance(wish, Guidance):
        raise DriverError(f"guide() gave {_kind(wish)}; wanted a Guidance")
    if wish.action is not None and not _is_numeric(wish.action):
        raise DriverError(f"guide() gave {_kind(wish.action)} as action; wanted numbers")
    events = wish.events if isinstance(wish.events, set | frozenset | tuple | list) else (None,)
    if not all(isinstance(event, str) for event in events):
        raise DriverError("guide() gave events that are not a set of words")
    action = None if wish.action is None else np.asarray(wish.action, dtype=np.float64)
    return Guidance(action, frozenset(events))


def solved(robot: Robot) -> bool | None:
    """Return True if the robot reports success, or None if it does not measure success.

    Raises:
        DriverError: ``success()`` raised an error, or returned another value.
    """
    verdict = called(robot.success)
    if verdict is not None and not isinstance(verdict, bool | np.bool_):
        raise DriverError(f"success() gave {_kind(verdict)}; wanted True, False or None")
    return None if verdict is None else bool(verdict)


def _is_numeric(value: Any) -> bool:
    try:
        return given_array(value).dtype.kind in "biuf"
    except Exception:  # ragged lists, masked values, or a driver's own objects
        return False


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    name = type(value).__name__
    return name if shape is None else f"{name} of shape {shape}, {getattr(value, 'dtype', '')}"


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "the driver's call")
