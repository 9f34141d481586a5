"""Handling of Ctrl-C and SIGTERM while a robot is connected."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import typer

from imitate.errors import UserError

if TYPE_CHECKING:
    from imitate.deploy.loop import Step
    from imitate.deploy.robot import Robot

STOPPED = 1


class Interrupts:
    """Signals that end a command.

    A signal raises KeyboardInterrupt at once, wherever the program is. In a finalizer or a callback of a library such
    as HDF5, Python drops the exception; therefore it is recorded, and :meth:`check` raises it again.
    """

    def __init__(self) -> None:
        self._pending: tuple[str, ...] | None = None

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has arrived."""
        if self._pending is not None:
            raise KeyboardInterrupt(*self._pending)

    def checked(self, on_step: Callable[[Step], None] | None) -> Callable[[Step], None]:
        """Return a function for the control loop that checks for signals after each step and then calls ``on_step``."""

        def look(step: Step) -> None:
            self.check()
            if on_step is not None:
                on_step(step)

        return look

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM if nobody else does.

        Without a handler, SIGTERM would leave the last command active.
        """
        before = {}
        if threading.current_thread() is threading.main_thread():
            usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
            for number, handler in usual.items():
                if signal.getsignal(number) is handler:
                    before[number] = signal.signal(number, self._note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        self._pending = () if number == signal.SIGINT else (f"by {signal.Signals(number).name}",)
        self.check()


@contextlib.contextmanager
def released(robot: Robot) -> Iterator[Interrupts]:
    """Stop and release a connected robot at the end of the block, even after Ctrl-C while it resets itself.

    Yields the signals that arrive meanwhile.
    """
    from imitate.deploy.driver import called
    from imitate.deploy.watchdog import stop_robot
    from imitate.errors import RobotError

    interrupts = Interrupts()
    with interrupts.watched():
        try:
            yield interrupts
        except (
            RobotError
        ) as error:  # an error of a device, or of a call to the robot between two episodes
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(STOPPED) from error
        except (UserError, typer.Exit):
            raise
        except (Exception, KeyboardInterrupt):
            interrupts.check()  # a library such as HDF5 may have replaced the signal's exception
            raise
        finally:
            try:
                try:
                    stop_robot(robot)
                finally:
                    called(robot.close)
            except RobotError as error:
                typer.echo(f"error: {error}", err=True)
                raise typer.Exit(STOPPED) from error
