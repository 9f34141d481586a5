"""Ctrl-C and SIGTERM while a robot is connected."""

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

    A signal raises KeyboardInterrupt at once, wherever the program is. Where that is a finalizer or a callback of a
    library, such as HDF5's, Python drops the exception: so it is remembered, and :meth:`check` raises it again.
    """

    def __init__(self) -> None:
        self._pending: tuple[str, ...] | None = None

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has come."""
        if self._pending is not None:
            raise KeyboardInterrupt(*self._pending)

    def checked(self, on_step: Callable[[Step], None] | None) -> Callable[[Step], None]:
        """A function for the control loop that looks for signals after each step, and then calls ``on_step``."""

        def look(step: Step) -> None:
            self.check()
            if on_step is not None:
                on_step(step)

        return look

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Take SIGINT and SIGTERM where nobody else does; SIGTERM by itself would leave the last command in force."""
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
    """Stop a connected robot and let go of it, whatever ends the block, also Ctrl-C while it resets itself.

    Gives the signals that come meanwhile.
    """
    from imitate.deploy.driver import called
    from imitate.deploy.robot import RobotError
    from imitate.deploy.watchdog import stop_robot

    interrupts = Interrupts()
    with interrupts.watched():
        try:
            yield interrupts
        except (
            RobotError
        ) as error:  # of a device, or of a question to the robot between two episodes
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(STOPPED) from error
        except (UserError, typer.Exit):
            raise
        except (Exception, KeyboardInterrupt):
            interrupts.check()  # what a library, such as HDF5, has made of the signal
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
