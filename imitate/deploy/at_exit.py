"""Close objects that must not keep running when the process ends, by itself or by SIGTERM."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any


class AtExit:
    """Calls a method of an object at the end of the process, unless it is released before.

    SIGTERM, which by default ends a process at once, calls it too and then ends the process; only if this is made in
    the main thread and nobody else handles the signal (a training closes its environments itself).

    Args:
        close: bound method; its object is not kept alive.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = weakref.WeakMethod(close)
        atexit.register(self._at_end)
        self._before: Any = signal.getsignal(signal.SIGTERM)
        is_ours = isinstance(getattr(self._before, "__self__", None), AtExit)
        if _in_main_thread() and (is_ours or self._before is signal.SIG_DFL):
            signal.signal(signal.SIGTERM, self._terminated)

    def release(self) -> None:
        """Drop the method and restore the signal handler; objects may be released in any order."""
        atexit.unregister(self._at_end)
        if not _in_main_thread():
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
            signal.signal(
                number, self._before
            )  # handler of another object, or the end of the process
            os.kill(os.getpid(), number)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
