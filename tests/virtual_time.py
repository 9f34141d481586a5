"""Time that passes only while every thread of a test waits, one thread at a time, so that the order is exact.

`imitate.system.clock` is replaced, and with it `Thread.join` and `Future.result`, in the thread of the test and in
those that were started since. A thread that waits for anything else counts as busy, and time stands still meanwhile.
"""

import math
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty

from imitate.system import clock

HANG_S = 200.0
"""Seconds of the machine in which no thread had a turn, after which a test hangs."""
LOOK_S = 0.001
"""Seconds of the machine after which a waiting thread looks whether another one has ended."""


@dataclass(eq=False)
class _Wait:
    is_over: callable
    until_s: float
    has_turn: bool = False


class VirtualTime:
    """The clock of a test; `now_s` may be set by it."""

    def __init__(self):
        self.now_s = 1000.0
        self._own = threading.current_thread()
        self._others = set(threading.enumerate()) - {self._own}
        self._waits = {}
        self._turns = threading.Condition()
        self._is_over, self._turned_s = False, time.monotonic()

    def replace(self, monkeypatch):
        """Replace the functions that wait, and those of the standard library that the product waits by."""
        replaced = {(clock, name): getattr(self, name) for name in ("now", "sleep", "wait")}
        replaced |= {(clock, name): getattr(self, name) for name in ("wait_for", "acquire", "get")}
        replaced |= {(threading.Thread, "join"): self.join, (Future, "result"): self.result}
        self._result = Future.result
        for (home, name), new in replaced.items():
            monkeypatch.setattr(home, name, self._of_this_test(new, getattr(home, name)))

    def end(self):
        """Let the threads that wait go on, in real time."""
        with self._turns:
            self._is_over = True
            self._turns.notify_all()

    def _of_this_test(self, new, old):
        def call(*args, **options):
            is_other = threading.current_thread() in self._others
            return (old if is_other or self._is_over else new)(*args, **options)

        return call

    # ---- in place of real functions ----

    def now(self):
        return self.now_s

    def sleep(self, seconds):
        self._until(lambda: False, seconds)

    def wait(self, event, timeout_s=None):
        return self._until(event.is_set, timeout_s)

    def wait_for(self, condition, predicate, timeout_s=None):
        until_s = math.inf if timeout_s is None else self.now_s + timeout_s
        while not predicate() and self.now_s < until_s and not self._is_over:
            condition.release()
            try:
                self._until(predicate, until_s - self.now_s)
            finally:
                condition.acquire()
        return predicate()

    def acquire(self, lock, timeout_s):
        held = []  # once it is free it is taken
        return self._until(
            lambda: bool(held) or bool(lock.acquire(False) and not held.append(1)), timeout_s
        )

    def get(self, items, timeout_s=None):
        if not self._until(lambda: not items.empty(), timeout_s):
            raise Empty
        return items.get_nowait()

    def join(self, thread, timeout=None):
        self._until(lambda: not thread.is_alive(), timeout)

    def result(self, future, timeout=None):
        if not self._until(future.done, timeout):
            raise TimeoutError
        return self._result(future)

    # ---- turns ----

    def _until(self, is_over, timeout_s):
        """Wait for one's turn: after the threads that run, once it is over or so late. Return whether it is over."""
        until_s = math.inf if timeout_s is None else self.now_s + max(timeout_s, 0.0)
        mine, thread = _Wait(is_over, until_s), threading.current_thread()
        self._turned_s = time.monotonic()
        with self._turns:
            self._waits[thread] = mine
            try:
                while not (mine.has_turn or self._is_over):
                    self._give_turn()
                    if not mine.has_turn:
                        self._turns.wait(LOOK_S)
                    is_late = time.monotonic() > self._turned_s + HANG_S
                    assert not is_late, f"these wait for ever: {list(self._waits)}"
            finally:
                del self._waits[thread]
        return is_over()

    def _give_turn(self):
        """Where all wait: give the turn to one whose wait is over, else to the earliest, as late as that is."""
        threads = [thread for thread in threading.enumerate() if thread not in self._others]
        waits = [self._waits.get(thread) for thread in threads]
        if any(wait is None or wait.has_turn for wait in waits):
            return
        others_first = [wait for thread, wait in self._waits.items() if thread is not self._own]
        in_order = others_first + [self._waits[self._own]]
        chosen = next((wait for wait in in_order if wait.is_over()), None)
        if chosen is None:
            chosen = min(in_order, key=lambda wait: wait.until_s)
            if chosen.until_s == math.inf:
                return
            self.now_s = max(self.now_s, chosen.until_s)
        chosen.has_turn = True
        self._turns.notify_all()
