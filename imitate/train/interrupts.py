"""SIGINT, SIGTERM and SIGHUP as a flag that the training loop reads between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Received signal, if any; `exit_code` is the shell's convention (130, 143)."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number, or 0 if no signal came."""
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
def caught_signals() -> Iterator[Interrupt]:
    """In the body, set a flag at the first ending signal and raise KeyboardInterrupt at the second.

    See :func:`ending_signals`. SIGHUP never raises: a closed terminal sends it more than once.

    The flag is never set outside the main thread, because Python allows no handlers there.
    """
    interrupt = Interrupt()

    def handle(number: int, frame: FrameType | None) -> None:
        if interrupt.signal is not None and number in (signal.SIGINT, signal.SIGTERM):
            raise KeyboardInterrupt
        interrupt.signal = interrupt.signal or number

    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {number: signal.signal(number, handle) for number in ending_signals()}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
