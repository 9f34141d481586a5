"""Stop a robot after any failure, from another thread if the control loop hangs.

The module also closes objects when the process ends, by itself or by SIGTERM.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.robot.driver import (
    DriverError,
    called,
    checked,
    report_unless,
    write_line,
)
from imitate.deploy.robot.robot import Observation, Robot
from imitate.errors import RobotError
from imitate.system import clock
from imitate.system.processes import in_main_thread
from imitate.system.user_code import error_words

STOP_S = 0.3
"""Seconds after which a ``stop()`` that has not returned is reported: the robot may still move."""


def stop_robot(robot: Robot, attempts: int = 3) -> None:
    """Stop a robot, and retry if its driver raises an error; Ctrl-C takes effect only after the robot has stopped.

    A call that does not return within ``STOP_S``, such as one that waits for a hanging driver, is reported on stderr
    by another thread.

    Raises:
        RobotError: all attempts failed; somebody must press the emergency stop.
        KeyboardInterrupt: Ctrl-C was pressed during the stop; the robot has been stopped.
    """
    failure: BaseException | None = None
    interrupted = False
    returned = threading.Event()
    for attempt in range(attempts):
        try:
            clock.sleep(0.02 * attempt)
            if not attempt:
                report_unless(
                    returned,
                    STOP_S,
                    f"stop() has not returned after {STOP_S:g} s: PRESS THE EMERGENCY STOP",
                )
            robot.stop()
            failure = None
            break
        except KeyboardInterrupt as error:
            interrupted, failure = True, error
        except BaseException as error:  # a driver may raise any error, and the robot may still move
            failure = error
    returned.set()
    if failure is not None:
        raise RobotError(
            f"stop() failed {attempts} times ({error_words(failure)}): PRESS THE EMERGENCY STOP"
        ) from failure
    if interrupted:
        raise KeyboardInterrupt


def slow_stop(seconds: float) -> str:
    """Describe a stop that took so long that the robot may have moved meanwhile, or return ''."""
    if seconds <= STOP_S:
        return ""
    return (
        f"stop() took {seconds:.1f} s, and the robot may have moved meanwhile; wanted at most {STOP_S:g} s: stop() "
        "should send the command and return at once"
    )


def reset_robot(robot: Robot, start: int | None = None) -> Observation | None:
    """Reset robot and scene for an episode; after any error or interruption the robot is stopped at once.

    Args:
        robot: connected robot.
        start: number of the initial state, for :meth:`Robot.reset_to`, or None for any.

    Raises:
        RobotError: the robot could not be reset.
    """
    try:
        seen = called(robot.reset) if start is None else called(robot.reset_to, start)
    except (
        BaseException
    ) as error:  # also after Ctrl-C, because callers may close files before they stop the robot
        stop_robot(robot)
        if isinstance(error, DriverError):
            raise RobotError(f"{error}; the robot was stopped") from error
        raise
    return None if seen is None else checked(seen, "reset")


class Watchdog:
    """Sends all commands to a robot, and stops it from a separate thread if no control step ends in time.

    A stop never waits for ``send``, which may hang. After a stop no action is sent; if a driver was already sending an
    action when the robot was stopped, the robot is stopped again afterwards.

    Args:
        robot: connected robot.
        limit_s: longest time between two finished control steps.
        stop_attempts: number of attempts if a stop raises an error.
    """

    def __init__(self, robot: Robot, limit_s: float, stop_attempts: int = 3) -> None:
        self.limit_s = limit_s
        self._robot, self._attempts = robot, stop_attempts
        self._lock = threading.Lock()
        self._stopped: str | None = None
        self._fed, self._done = threading.Event(), False
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def send(self, action: NDArray[np.float64]) -> None:
        """Send an action, unless the robot has been stopped.

        Raises:
            RobotError: the robot was stopped before or during this call, or its driver raised an error.
        """
        self._move(self._robot.send, action)

    def hold(self) -> None:
        """Hold the pose for this control step; raises as :meth:`send` does."""
        self._move(self._robot.hold)

    def skip(self) -> None:
        """Count a control step in which nothing is sent, as in a dry run; raises as :meth:`send` does."""
        self._move(lambda: None)

    def stop(self, reason: str) -> None:
        """Stop the robot for good; nothing is sent afterwards. May be called from any thread."""
        with self._lock:
            self._stopped = self._stopped or reason
        stop_robot(self._robot, self._attempts)

    def _move(self, how: Any, *action: NDArray[np.float64]) -> None:
        self._refuse_if_stopped()
        try:
            called(how, *action)
        except DriverError as error:
            raise RobotError(f"{error}; the robot was stopped") from error
        self._refuse_if_stopped(again=True)
        self._fed.set()

    def _refuse_if_stopped(self, again: bool = False) -> None:
        with self._lock:
            reason = self._stopped
        if reason is None:
            return
        if again:  # the action may have reached the robot after it was stopped
            stop_robot(self._robot, self._attempts)
        raise RobotError(f"{reason}; the robot was stopped")

    def _watch(self) -> None:
        while not self._done:
            if clock.wait(self._fed, self.limit_s) or self._done:
                self._fed.clear()
                continue
            reason = f"no control step ended within {self.limit_s:g} s, so the watchdog fired"
            write_line(
                f"{reason}: stopping the robot; Ctrl-C ends the command if the hanging call "
                "does not return"
            )
            try:
                self.stop(reason)
            except RobotError as error:
                write_line(str(error))
            return

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done = True
        self._fed.set()
        self._thread.join()


class AtExit:
    """Calls a method of an object at the end of the process, unless :meth:`release` was called before.

    SIGTERM, which by default ends a process at once, calls the method too and then ends the process, but only if this
    object is made in the main thread and the signal has no other handler (training closes its environments itself).

    Args:
        close: bound method; its object is not kept alive.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = weakref.WeakMethod(close)
        atexit.register(self._at_end)
        self._before: Any = signal.getsignal(signal.SIGTERM)
        is_ours = isinstance(getattr(self._before, "__self__", None), AtExit)
        if in_main_thread() and (is_ours or self._before is signal.SIG_DFL):
            signal.signal(signal.SIGTERM, self._terminated)

    def release(self) -> None:
        """Drop the method and restore the signal handler; objects may be released in any order."""
        atexit.unregister(self._at_end)
        if not in_main_thread():
            return
        handler: Any = signal.getsignal(signal.SIGTERM)
        if handler == self._terminated:
            signal.signal(signal.SIGTERM, self._before)
        while isinstance(later := getattr(handler, "__self__", None), AtExit):
            handler = later._before
            if handler == self._terminated:
                later._before = self._before

    def _at_end(self) -> None:
        close = self._close()
        if close is not None:
            close()

    def _terminated(self, number: int, frame: Any) -> None:
        try:
            self._at_end()
        finally:
            # The signal is sent again to the previous handler; the default handler ends the process.
            signal.signal(number, self._before)
            os.kill(os.getpid(), number)
