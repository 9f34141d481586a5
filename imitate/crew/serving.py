"""Main function of a worker process: prepare its function and answer items until its parent hangs up."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from imitate.crew.backend import Answer, Lost, Message, Note, Prepare, Unprepared, Work
from imitate.crew.pulse import Pulse
from imitate.crew.shared import Header, Holdings, unpickle
from imitate.errors import EnvError, UserError, WorkerError
from imitate.system.processes import end_with_parent

END = pickle.dumps(None)
"""Message to a process, in place of a header: there is nothing more to do."""


def serve(prepare: Prepare, connection: Connection, pulse: Pulse) -> None:
    """Answer items until the parent hangs up: the main function of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    with suppress(OSError, AttributeError):
        os.dup2(2, 1)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # as stderr is
    pulse("")  # report that the process has begun
    with suppress(EOFError, OSError):
        work = _prepared(prepare, _Reports(pulse, connection))
        if isinstance(work, Unprepared):
            connection.send_bytes(_pickled(work))
            return
        holdings = Holdings()
        while (answer := _answered(work, connection, holdings)) is not None:
            connection.send_bytes(_pickled(answer))
            pulse("")
        getattr(work, "close", lambda: None)()


def unpickled(data: bytes) -> Message:
    """Unpickle the message of a process."""
    try:
        message: Message = unpickle(data)
    except Exception as error:  # such as a class that this process cannot import
        return Lost(f"its result cannot be read ({_described(error)})")
    return message


class _Reports:
    """Reports of a process: beats in shared memory, notes through the pipe."""

    def __init__(self, pulse: Pulse, connection: Connection) -> None:
        self._pulse, self._connection = pulse, connection

    def __call__(self, call: str) -> None:
        self._pulse(call)

    def note(self, value: Any) -> None:
        self._connection.send_bytes(_pickled(Note(value)))


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


def _answered(work: Work, connection: Connection, holdings: Holdings) -> Message | None:
    """Return the answer to the next item; None if none follows.

    Raises:
        EOFError, OSError: the parent is gone.
    """
    header: Header | None = unpickle(connection.recv_bytes())
    if header is None:
        return None
    holdings.update(header, connection.recv_bytes)
    data = connection.recv_bytes()
    try:
        item = holdings.item(data)
    except Exception as error:  # such as a class that this process cannot import
        return Lost(f"its item cannot be read ({_described(error)})")
    return _answer(work, item)


def _answer(work: Work, item: Any) -> Message:
    try:
        return Answer(work(item))
    except UserError as error:
        return Lost(str(error), error=error)
    except (Exception, SystemExit) as error:  # the simulator failed: the next item may succeed
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
