"""SIGINT and SIGTERM as a flag that the training loop reads between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Which signal came, if any; `exit_code` is the shell's convention (130, 143)."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number; 0 when none came."""
        return 0 if self.signal is None else 128 + self.signal

    @property
    def name(self) -> str:
        """The signal's name."""
        return "" if self.signal is None else signal.Signals(self.signal).name


@contextmanager
def caught_signals() -> Iterator[Interrupt]:
    """Within the body the first SIGINT or SIGTERM sets the flag, the second one raises KeyboardInterrupt.

    Outside the main thread, where Python allows no handlers, the flag never rises.
    """
    interrupt = Interrupt()

    def handle(number: int, frame: FrameType | None) -> None:
        if interrupt.signal is not None:
            raise KeyboardInterrupt
        interrupt.signal = number

    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
