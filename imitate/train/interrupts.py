"""Conversion of SIGINT, SIGTERM and SIGHUP to a flag that the training loop reads between two steps."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from imitate.system.processes import handled


class Interrupt:
    """The received signal, if any; `exit_code` follows the shell's convention (130, 143)."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number, or 0 if no signal was received."""
        return 0 if self.signal is None else 128 + self.signal

    @property
    def name(self) -> str:
        """Name of the signal."""
        return "" if self.signal is None else signal.Signals(self.signal).name


def ending_signals() -> list[int]:
    """Return the signals that end a training: SIGINT, SIGTERM, and SIGHUP unless nohup lets this process ignore it."""
    hangup = getattr(signal, "SIGHUP", None)  # Windows has no SIGHUP
    if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN:
        return [signal.SIGINT, signal.SIGTERM]
    return [signal.SIGINT, signal.SIGTERM, hangup]


@contextmanager
def ended_by_signals(is_ending: Callable[[], bool], end: Callable[[int], object]) -> Iterator[None]:
    """During the body, call ``end`` at an ending signal, or raise KeyboardInterrupt if the end has already begun.

    See :func:`ending_signals`. SIGHUP never raises: a closed terminal sends it more than once. A handler is set even
    if a shell lets a background command ignore SIGINT.

    Nothing is called outside the main thread, because Python allows no handlers there.

    Args:
        is_ending: returns true if the end has begun.
        end: called with the signal's number; begins the end.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if is_ending() and number in (signal.SIGINT, signal.SIGTERM):
            raise KeyboardInterrupt
        end(number)

    with handled(dict.fromkeys(ending_signals(), handle)):
        yield


@contextmanager
def caught_signals() -> Iterator[Interrupt]:
    """During the body, set a flag at the first ending signal and raise KeyboardInterrupt at the second."""
    interrupt = Interrupt()

    def note(number: int) -> None:
        interrupt.signal = interrupt.signal or number

    with ended_by_signals(lambda: interrupt.signal is not None, note):
        yield interrupt
