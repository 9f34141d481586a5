"""Processes that end with the one that started them, and the words in which they tell what they are doing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait

LOOK_S = 0.5
"""Time between two looks whether the parent lives."""
STEP_TIMEOUT_S = 60.0
"""A call of an environment that takes longer counts as a hang, unless another limit is set."""
MAKE_FACTOR = 5.0
"""Making an environment may take this many times as long as a step: it imports, compiles and loads meshes."""
MAKE = "making the environment"

Beat = Callable[[str], None]
"""Called with what begins now: :data:`MAKE`, "reset()", "step()" ..., or "" where it has ended."""


def end_with_parent() -> None:
    """Let this process, one of multiprocessing's, end as soon as the process that started it is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        _end_with(parent.pid, parent.sentinel)
        _kill_at_hangup(parent.sentinel)


def _end_with(parent: int | None, sentinel: int) -> None:
    """End with a parent whose death closes a pipe, unless another process, forked from it, holds it open."""
    is_child = os.getppid() == parent

    def watch() -> None:
        while not wait([sentinel], timeout=LOOK_S):
            if is_child and os.getppid() != parent:
                break
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def end_with_stdin(patience_s: float) -> None:
    """Let this process end as SIGTERM ends it when its stdin is closed; it is killed after so many seconds."""

    def end() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(patience_s)
        os._exit(1)

    end_at_hangup(sys.stdin.fileno(), end)


def end_at_hangup(pipe: int, end: Callable[[], None]) -> None:
    """Call `end` in a thread when the other end of a pipe is closed, as it is when its process dies."""

    def watch() -> None:
        wait([pipe])
        end()

    threading.Thread(target=watch, daemon=True).start()


def _kill_at_hangup(pipe: int) -> None:
    """Let Linux kill this process at that moment: no thread runs while a call hangs that holds Python's lock."""
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
