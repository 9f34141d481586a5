"""The only functions by which control loops, watchdogs, devices and heartbeats read the clock, sleep and wait.

Tests replace them with a clock that advances only while all threads wait.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Lock(Protocol):
    """Interface of a lock of ``threading``."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool:
        """Acquire the lock; return false if that is not possible in time."""


def now() -> float:
    """Return the seconds of ``time.monotonic()``."""
    return time.monotonic()


def sleep(seconds: float) -> None:
    """Sleep for this many seconds."""
    time.sleep(seconds)


def wait(event: threading.Event, timeout_s: float | None = None) -> bool:
    """Wait for an event, at most ``timeout_s``; return whether it is set."""
    return event.wait(timeout_s)


def wait_for(
    condition: threading.Condition, predicate: Callable[[], bool], timeout_s: float | None = None
) -> bool:
    """Wait until a predicate holds, at most ``timeout_s``; return whether it holds.

    Args:
        condition: condition variable that the caller holds; it is released during the wait, and another thread must
            notify it when the predicate may have changed.
        predicate: function that is called with the condition held.
        timeout_s: seconds to wait, or None to wait forever.
    """
    return condition.wait_for(predicate, timeout_s)


def acquire(lock: Lock, timeout_s: float) -> bool:
    """Acquire a lock, waiting at most ``timeout_s``; return whether it is held."""
    return lock.acquire(timeout=timeout_s)


def get(items: queue.Queue[Item] | queue.SimpleQueue[Item], timeout_s: float | None = None) -> Item:
    """Take the next item of a queue.

    Raises:
        queue.Empty: no item arrived in time.
    """
    return items.get(timeout=timeout_s)
