"""Workers in processes of this machine, each with a pipe.

A worker ignores Ctrl-C, which is its parent's to answer, and ends with its parent, also when that is killed and while a
simulator hangs. What it prints to stdout goes to stderr: stdout is the parent's, which may print JSON there.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from imitate.crew.backend import (
    POLL_S,
    Answer,
    CancelledError,
    Limits,
    Lost,
    Message,
    Note,
    Prepare,
    Unprepared,
    Work,
)
from imitate.crew.pulse import Pulse, Watch
from imitate.errors import EnvError, UserError, WorkerError
from imitate.processes import end_with_parent

ROOM = 32 * 1024
"""Bytes that a pipe takes even if nobody reads at its other end."""


@dataclass(frozen=True)
class _Item:
    """Message to a process: what to work on."""

    value: Any


@dataclass(frozen=True)
class _End:
    """Message to a process: there is nothing more to do."""


class LocalBackend:
    """Processes of this machine.

    Args:
        name: of the processes.
    """

    def __init__(self, name: str = "imitate-worker") -> None:
        self._name = name
        self._news, self._over = threading.Event(), threading.Event()

    def start(self, prepare: Prepare) -> LocalMember:
        """Start a process.

        Raises:
            CancelledError: this process is ending, while another thread of it works on.
        """
        if not self._over.is_set():
            member = LocalMember(prepare, self._news, self._over, self._name)
            if not self._over.is_set():
                return member
            member.stop()
        raise CancelledError

    def pack(self, item: Any) -> bytes:
        """Pickle an item."""
        return pickle.dumps(_Item(item), protocol=pickle.HIGHEST_PROTOCOL)

    def heard(
        self, members: Sequence[LocalMember], limits: Limits, timeout_s: float = POLL_S
    ) -> list[LocalMember]:
        """Return the processes that have sent something, are gone or hang."""
        self._news.clear()
        found = [member for member in members if member.has_news(limits)]
        if not found and self._news.wait(timeout_s):
            found = [member for member in members if member.has_news(limits)]
        return found


class LocalMember:
    """One process.

    A thread reads its pipe, and another one writes what is large, so that a process that stops in the middle of a
    message does not stop this one.

    Args:
        prepare: makes the function of the process.
        news: is set when something comes.
        over: is set when this process ends before the other one was stopped.
        name: of the process.
    """

    def __init__(
        self, prepare: Prepare, news: threading.Event, over: threading.Event, name: str
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._pulse = Pulse(context)
        self._watch = Watch(self._pulse)
        self._hung: str | None = None
        self._process = context.Process(
            target=_serve, args=(prepare, theirs, self._pulse), name=name
        )
        self._process.start()
        theirs.close()
        self._owner, self._over = os.getpid(), over
        atexit.register(self._leave)  # Python waits at its end for processes that were left
        self._news, self._inbox = news, deque[Message | None]()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def exit_code(self) -> int | None:
        """Exit code of a dead process, negative the number of a signal."""
        return self._process.exitcode

    def give(self, packed: bytes) -> bool:
        """See :class:`imitate.crew.backend.Member`."""
        if None in self._inbox or not self._process.is_alive():
            return False
        self._watch.restart()
        if len(packed) > ROOM:
            threading.Thread(target=self._write, args=(packed,), daemon=True).start()
            return True
        return self._write(packed)

    def has_news(self, limits: Limits) -> bool:
        """Return true if it has sent something, is gone, or hangs."""
        if self._inbox:
            return True
        # A process that it started may hold the pipe open after its death: then no hang-up is read.
        alive = self._process.is_alive()
        self._hung = self._watch.verdict(limits) if alive else None
        return bool(self._inbox) or not alive or self._hung is not None

    def answer(self) -> Message:
        """See :class:`imitate.crew.backend.Member`."""
        if not self._inbox and not self._process.is_alive():
            self._reader.join(timeout=1.0)  # its last words may be on their way
        message = self._inbox.popleft() if self._inbox else None
        return self._loss() if message is None else message

    def _loss(self) -> Lost:
        """End the process, and say why there is no answer."""
        call, beats = self._pulse.read()
        hung, self._hung = self._hung, None
        if hung is not None and self._process.is_alive():
            self.stop()
            return Lost(hung, died=True, begun=beats > 0)
        self.stop(patience_s=5.0)  # it is ending; its own exit code is wanted
        where = f" in {call}" if call else ""
        reason = f"its process died{where} (exit code {self.exit_code})"
        return Lost(reason, died=True, begun=beats > 0)

    def dismiss(self) -> None:
        """See :class:`imitate.crew.backend.Member`."""
        self._write(pickle.dumps(_End()))

    def stop(self, patience_s: float = 0.0) -> None:
        """See :class:`imitate.crew.backend.Member`."""
        atexit.unregister(self._leave)
        if patience_s:
            self._process.join(timeout=patience_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._reader.join(timeout=1.0)
        self._connection.close()

    def _leave(self) -> None:
        if os.getpid() == self._owner:  # and no process that was forked from it
            self._over.set()
            self.stop()

    def _write(self, data: bytes) -> bool:
        try:
            self._connection.send_bytes(data)
        except OSError:
            return False
        return True

    def _read(self) -> None:
        message: Message | None = Note(None)
        while message is not None:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                message = None
            except Exception as error:  # of a class that this process cannot import, perhaps
                message = Lost(f"its result cannot be read ({_described(error)})")
            self._inbox.append(message)
            self._news.set()


class _Reports:
    """Reports of a process: beats in shared memory, notes through the pipe."""

    def __init__(self, pulse: Pulse, connection: Connection) -> None:
        self._pulse, self._connection = pulse, connection

    def __call__(self, call: str) -> None:
        self._pulse(call)

    def note(self, value: Any) -> None:
        self._connection.send_bytes(_pickled(Note(value)))


def _serve(prepare: Prepare, connection: Connection, pulse: Pulse) -> None:
    """Answer items until the parent hangs up: the main function of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    with suppress(OSError):
        os.dup2(2, 1)
    pulse("")  # it has begun
    with suppress(EOFError, OSError):
        work = _prepared(prepare, _Reports(pulse, connection))
        if isinstance(work, Unprepared):
            connection.send_bytes(_pickled(work))
            return
        while (answer := _answered(work, connection)) is not None:
            connection.send_bytes(_pickled(answer))
            pulse("")
        getattr(work, "close", lambda: None)()


def _prepared(prepare: Prepare, reports: _Reports) -> Work | Unprepared:
    try:
        return prepare(reports)
    except UserError as error:
        return Unprepared(error)
    except SystemExit as error:
        return Unprepared(EnvError(_described(error)))
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return Unprepared(WorkerError(f"a worker cannot be prepared: {_described(error)}"))


def _answered(work: Work, connection: Connection) -> Message | None:
    """Return the answer to the next item; None where none follows.

    Raises:
        EOFError, OSError: the parent is gone.
    """
    try:
        item = connection.recv()
    except (EOFError, OSError):
        raise
    except Exception as error:  # of a class that this process cannot import, perhaps
        return Lost(f"its item cannot be read ({_described(error)})")
    return _answer(work, item.value) if isinstance(item, _Item) else None


def _answer(work: Work, item: Any) -> Message:
    try:
        return Answer(work(item))
    except UserError as error:
        return Lost(str(error), error=error)
    except (Exception, SystemExit) as error:  # a simulator that blew up: the next item may be sound
        return Lost(_described(error))


def _pickled(message: Message) -> bytes:
    try:
        return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return pickle.dumps(Lost(f"its result cannot be sent ({_described(error)})"))


def _described(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"the environment called sys.exit({error.code!r})"
    return f"{type(error).__name__}: {error}".splitlines()[0]
