"""Main function of a worker process, which processes items until its parent closes the connection.

The worker records each call of the environment in shared memory, where its parent detects calls that hang.
"""

import os
import pickle
import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from imitate.crew.backend import (
    POLL_S,
    Answer,
    Limits,
    Lost,
    Message,
    Note,
    Prepare,
    Unprepared,
    Work,
)
from imitate.crew.shared import Holdings, ItemHeader, unpickle
from imitate.errors import EnvError, UserError, WorkerError
from imitate.system import clock
from imitate.system.processes import MAKE, MAKE_FACTOR, end_with_parent


class Pulse:
    """Shared memory with a worker's current call of the environment, and a counter of its reports (beats).

    Args:
        context: context of multiprocessing.
    """

    def __init__(self, context: Any) -> None:
        self._beats = context.RawValue("Q", 0)
        self._call = context.RawArray("c", 32)

    def __call__(self, call: str) -> None:
        """Report the call that begins now; "" if no call of the environment is running."""
        # The counter is written first and read last, so that a reader who sees the new call also sees the new counter.
        self._beats.value += 1
        self._call.value = call.encode()[:31]

    def read(self) -> tuple[str, int]:
        """Return the running call, or "" between calls, and the number of beats so far."""
        return self._call.value.decode(errors="replace"), int(self._beats.value)


class HangDetector:
    """Detects a hung worker: call :meth:`verdict` every :data:`POLL_S` while its process works."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self.restart()

    def restart(self) -> None:
        """Restart the measurement, because an item begins."""
        self._seen, self._looked = -1, clock.now()
        self._still_s = self._item_s = 0.0

    def verdict(self, limits: Limits) -> str | None:
        """Return the reason why the process counts as hung, or None."""
        now, (call, beats) = clock.now(), self._pulse.read()
        # The time for which this process itself was stopped or suspended does not count against the worker.
        passed, self._looked = min(now - self._looked, 2 * POLL_S), now
        self._item_s += passed
        self._still_s = self._still_s + passed if beats == self._seen else 0.0
        self._seen = beats
        if limits.item_s is not None and self._item_s > limits.item_s:
            return f"it took longer than {limits.item_s:g} s"
        limit_s = _limit(limits, call, beats)
        if limit_s is None or self._still_s <= limit_s:
            return None
        if call:
            return f"{call} did not return within {limit_s:g} s"
        return f"its process {'reported nothing for' if beats else 'did not begin within'} {limit_s:g} s"


def _limit(limits: Limits, call: str, beats: int) -> float | None:
    """Return the seconds that may pass without a report of the worker; None for no limit."""
    if beats == 0:
        return limits.start_s
    if call and limits.call_s is not None:
        return limits.call_s * (MAKE_FACTOR if call == MAKE else 1.0)
    return None if call else limits.quiet_s


END = pickle.dumps(None)
"""Message to a worker in place of the header of an item: no item follows, so the worker ends."""


def serve(prepare: Prepare, connection: Connection, pulse: Pulse) -> None:
    """Process items until the parent closes the connection; this is the main function of a worker process."""
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
    """Unpickle a message of a worker; return a :class:`Lost` if this process cannot unpickle it."""
    try:
        message: Message = unpickle(data)
    except Exception as error:  # for example a class that this process cannot import
        return Lost(f"its result cannot be read ({_described(error)})")
    return message


class _Reports:
    """Reports of a worker: its calls in shared memory, its notes through the pipe."""

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
    """Receive the next item and return the message with its result; None if no item follows.

    Raises:
        EOFError, OSError: the parent is gone.
    """
    header: ItemHeader | None = unpickle(connection.recv_bytes())
    if header is None:
        return None
    holdings.update(header, connection.recv_bytes)
    data = connection.recv_bytes()
    try:
        item = holdings.item(data)
    except Exception as error:  # for example a class that this process cannot import
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
