"""Worker processes: started with a pipe, heard while they work, ended when they hang, and never left behind.

A worker reports through its :class:`Pulse` which call of its environment is running. The parent polls; a call that does
not return within a limit is a hang, and the worker is killed. A worker ends with its parent, also when that is killed
and while a simulator hangs.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

POLL_S = 0.5
"""Longest wait between two looks at the pulses."""
STEP_TIMEOUT_S = 60.0
"""A call of an environment that takes longer counts as a hang, unless another limit is set."""
MAKE_FACTOR = 5.0
"""Making an environment may take this many times as long as a step: it imports, compiles and loads meshes."""
MAKE = "making the environment"

Beat = Callable[[str], None]
"""Called with what begins now: :data:`MAKE`, "reset()", "step()" ..., or "" where it has ended."""


@dataclass(frozen=True)
class Lost:
    """An item without a result.

    Attributes:
        reason: in words.
        died: its process died or was ended because it hung, which says nothing about other items.
    """

    reason: str
    died: bool = False


class Pulse:
    """A process's counter of beats and the call that is running, in memory that its parent reads.

    Args:
        context: of the process.
    """

    def __init__(self, context: Any) -> None:
        self._beats = context.RawValue("Q", 0)
        self._call = context.RawArray("c", 32)

    def __call__(self, call: str) -> None:
        """Tell what begins now; "" where nothing of the environment runs."""
        self._call.value = call.encode()[:31]
        self._beats.value += 1

    @property
    def beats(self) -> int:
        """Calls so far; 0: the process has not begun."""
        return int(self._beats.value)

    @property
    def call(self) -> str:
        """The call that is running; "" where none is."""
        return str(self._call.value.decode())


class Worker:
    """One process and the parent's end of its pipe.

    Args:
        serve: what the process does, with its end of the pipe, its pulse and `args`; picklable.
        args: further arguments.
        name: of the process.
    """

    def __init__(
        self, serve: Callable[..., None], args: Sequence[Any] = (), name: str = "imitate-worker"
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.pulse = Pulse(context)
        self._process = context.Process(
            target=_begin, args=(serve, theirs, self.pulse, *args), name=name
        )
        self._process.start()
        theirs.close()
        self._seen, self._still_s, self._looked = 0, 0.0, time.monotonic()

    @property
    def exit_code(self) -> int | None:
        """Exit code of a dead process, negative the number of a signal."""
        return self._process.exitcode

    def give(self, item: Any) -> bool:
        """Send an item; False if the process is gone."""
        try:
            self.connection.send(item)
        except OSError:
            return False
        return True

    def answer(self, limit_s: float | None = None) -> Any:
        """The answer that has come, or a :class:`Lost` where the process died or hangs; it is then ended."""
        if limit_s is not None and not self.connection.poll() and self.hangs(limit_s):
            call = self.pulse.call
            self.stop()
            allowed = limit_s * (MAKE_FACTOR if call == MAKE else 1.0)
            return Lost(f"{call} did not return within {allowed:g} s", died=True)
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            call = self.pulse.call
            self.stop(patience_s=5.0)  # it is ending; its own exit code is wanted
            where = f" in {call}" if call else ""
            return Lost(f"its process died{where} (exit code {self.exit_code})", died=True)

    def hangs(self, limit_s: float) -> bool:
        """Return true if one call of the environment runs for longer than the limit; call it every :data:`POLL_S`."""
        now, beats, call = time.monotonic(), self.pulse.beats, self.pulse.call
        # A pause of this process itself, stopped or suspended, is no hang of the other.
        passed, self._looked = min(now - self._looked, 2 * POLL_S), now
        if beats != self._seen or not call:
            self._seen, self._still_s = beats, 0.0
            return False
        self._still_s += passed
        return self._still_s > limit_s * (MAKE_FACTOR if call == MAKE else 1.0)

    def stop(self, patience_s: float = 0.0) -> None:
        """Hang up; a process that has not ended after so many seconds is killed."""
        self.connection.close()
        self._process.join(timeout=patience_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


AnyWorker = TypeVar("AnyWorker", bound=Worker)


def heard(
    workers: Sequence[AnyWorker], limit_s: float | None, timeout_s: float = POLL_S
) -> list[AnyWorker]:
    """Workers that have answered, died, or hang; waits at most `timeout_s` for one."""
    ready = wait([worker.connection for worker in workers], timeout=timeout_s)
    return [
        worker
        for worker in workers
        if worker.connection in ready or (limit_s is not None and worker.hangs(limit_s))
    ]


def _begin(serve: Callable[..., None], connection: Connection, pulse: Pulse, *args: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    pulse("")  # it has begun
    serve(connection, pulse, *args)


def end_with_parent() -> None:
    """Let this process, one of multiprocessing's, end as soon as the process that started it is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        end_at_hangup(parent.sentinel, lambda: os._exit(1))
        _kill_at_hangup(parent.sentinel)


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
