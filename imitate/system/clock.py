"""Time of control loops, watchdogs, devices and heartbeats: read, slept and waited for by these functions alone.

Tests replace them by a time that passes only while all threads wait.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Lock(Protocol):
    """A lock of ``threading``."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool:
        """Take it."""


def now() -> float:
    """Seconds of ``time.monotonic()``."""
    return time.monotonic()


def sleep(seconds: float) -> None:
    """Return so many seconds later."""
    time.sleep(seconds)


def wait(event: threading.Event, timeout_s: float | None = None) -> bool:
    """Wait for an event, at most so many seconds; return whether it has happened."""
    return event.wait(timeout_s)


def wait_for(
    condition: threading.Condition, predicate: Callable[[], bool], timeout_s: float | None = None
) -> bool:
    """Wait until a predicate holds, at most so many seconds; return whether it does.

    Args:
        condition: held by the caller, released meanwhile; notified when the predicate may have changed.
        predicate: called with the condition held.
        timeout_s: None: for ever.
    """
    return condition.wait_for(predicate, timeout_s)


def acquire(lock: Lock, timeout_s: float) -> bool:
    """Acquire a lock, waiting at most so many seconds; return whether it is held."""
    return lock.acquire(timeout=timeout_s)


def get(items: queue.Queue[Item] | queue.SimpleQueue[Item], timeout_s: float | None = None) -> Item:
    """Take the next item of a queue.

    Raises:
        queue.Empty: none came in so many seconds.
    """
    return items.get(timeout=timeout_s)
