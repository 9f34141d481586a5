"""Handlers of signals that last for a block."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def in_main_thread() -> bool:
    """Return true in the main thread, the only one in which Python allows handlers of signals."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def handled(handlers: Mapping[int, Any]) -> Iterator[None]:
    """Handle signals in the body, and then as before; outside the main thread, nothing changes."""
    before = {}
    if in_main_thread():
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
