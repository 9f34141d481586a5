"""Workers in processes on this machine, connected to their parent by pipes.

A worker ignores Ctrl-C, which its parent handles, and ends with its parent, even if the parent is killed or a simulator
hangs. Everything that a worker prints goes to stderr, because the parent may print JSON to stdout.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

from imitate.crew.backend import POLL_S, CancelledError, Limits, Lost, Message, Prepare
from imitate.crew.serving import END, HangDetector, Pulse, serve, unpickled
from imitate.crew.shared import Ledger, PackedItem, packed
from imitate.system.processes import available_cores

ROOM = 32 * 1024
"""Number of bytes that can be written to a pipe before its other end is read."""

CONTEXT: Any = multiprocessing.get_context("spawn")
"""Context of multiprocessing. A process starts as a new interpreter, which is safe beside threads and OpenGL."""

Buffer = bytes | memoryview


class LocalBackend:
    """Processes on this machine.

    Args:
        name: name of the processes.
    """

    def __init__(self, name: str = "imitate-worker") -> None:
        self._name = name
        self._news, self._over = threading.Event(), threading.Event()

    @property
    def host(self) -> str:
        """Address of the loopback interface."""
        return "127.0.0.1"

    @property
    def places(self) -> int:
        """Number of processors that this process may use."""
        return available_cores()

    def start(self, prepare: Prepare) -> LocalMember:
        """Start a process.

        Raises:
            CancelledError: the interpreter is exiting, and the call comes from another thread.
        """
        if not self._over.is_set():
            member = LocalMember(prepare, self._news, self._over, self._name)
            if not self._over.is_set():
                return member
            member.stop()
        raise CancelledError

    def pack(self, item: Any) -> PackedItem:
        """Pickle an item."""
        return packed(item)

    def heard(
        self, members: Sequence[LocalMember], limits: Limits, timeout_s: float = POLL_S
    ) -> list[LocalMember]:
        """Return the processes that have sent a message, ended or hung."""
        self._news.clear()
        found = [member for member in members if member.has_news(limits)]
        if not found and self._news.wait(timeout_s):
            found = [member for member in members if member.has_news(limits)]
        return found


class LocalMember:
    """A worker process, as its parent sees it.

    One thread reads the pipe, and another one writes large messages, so that a worker that stops in the middle of a
    message does not block the parent.

    Args:
        prepare: factory of the worker's function, called in the worker.
        news: event that is set when a message arrives.
        over: event that is set when the parent exits before the worker was stopped.
        name: name of the worker process.
    """

    def __init__(
        self, prepare: Prepare, news: threading.Event, over: threading.Event, name: str
    ) -> None:
        self._connection, theirs = CONTEXT.Pipe()
        self._pulse = Pulse(CONTEXT)
        self._watch = HangDetector(self._pulse)
        self._hung: str | None = None
        self._process: BaseProcess = CONTEXT.Process(
            target=serve, args=(prepare, theirs, self._pulse), name=name
        )
        self._process.start()
        theirs.close()
        self._owner, self._over = os.getpid(), over
        atexit.register(self._leave)  # otherwise Python would wait for the process when it exits
        self._news, self._inbox = news, deque[bytes | None]()
        self._ledger = Ledger()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process: -N if signal N ended it, None while it runs."""
        return self._process.exitcode

    def waits(self) -> bool:
        """Return false, because a process on this machine starts at once."""
        return False

    def give(self, packed: PackedItem) -> bool:
        """Send a packed item; return false if the process is gone."""
        header = self._ledger.header(list(packed.shared))
        values = [packed.shared[key].data for key in header.keys]
        return self.send([pickle.dumps(header), *values, packed.data])

    def send(self, parts: Sequence[Buffer]) -> bool:
        """Send the parts of an item: a pickled :class:`~imitate.crew.shared.ItemHeader`, shared values, the item."""
        if None in self._inbox or not self._process.is_alive():
            return False
        self._watch.restart()
        if sum(len(part) for part in parts) > ROOM:
            threading.Thread(target=self._write, args=(parts,), daemon=True).start()
            return True
        return self._write(parts)

    def has_news(self, limits: Limits) -> bool:
        """Return true if the process has sent a message, ended or hung."""
        if self._inbox:
            return True
        # A worker's death does not always close the pipe: a process that the worker started may keep the pipe open.
        alive = self._process.is_alive()
        self._hung = self._watch.verdict(limits) if alive else None
        return bool(self._inbox) or not alive or self._hung is not None

    def answer(self) -> Message:
        """Return the next message of the process; a :class:`Lost` if the process has ended or hung."""
        message = self.received()
        return unpickled(message) if isinstance(message, bytes) else message

    def received(self) -> bytes | Lost:
        """Return the next message, still pickled; a :class:`Lost` if the process has ended or hung."""
        if not self._inbox and not self._process.is_alive():
            self._reader.join(
                timeout=1.0
            )  # the last messages of the process may still be in the pipe
        message = self._inbox.popleft() if self._inbox else None
        return self._loss() if message is None else message

    def _loss(self) -> Lost:
        """End a process that hangs or is already gone; return the loss with its reason."""
        call, beats = self._pulse.read()
        hung, self._hung = self._hung, None
        if hung is not None and self._process.is_alive():
            self.stop()
            return Lost(hung, died=True, begun=beats > 0)
        self.stop(patience_s=5.0)  # wait, because the message needs the exit code
        where = f" in {call}" if call else ""
        reason = f"its process died{where} (exit code {self.exit_code})"
        return Lost(reason, died=True, begun=beats > 0)

    def dismiss(self) -> None:
        """Let the idle process end, without waiting for it."""
        self._write([END])

    def stop(self, patience_s: float = 0.0) -> None:
        """End the process, by force if it has not ended after ``patience_s``."""
        atexit.unregister(self._leave)
        if patience_s:
            self._process.join(timeout=patience_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._reader.join(timeout=1.0)
        self._connection.close()

    def join(self) -> None:
        """Wait until the process has ended; another thread may use this object meanwhile."""
        # The processes of a fork server are children of the server, not of this process.
        is_child = CONTEXT.get_start_method() == "spawn"
        if is_child and hasattr(os, "waitid") and self._process.pid is not None:
            with suppress(ChildProcessError):  # the process has ended, and its exit code was read
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        else:
            # Not used for children: a process that the worker started may keep the sentinel open after the worker's
            # death.
            wait([self._process.sentinel])

    def _leave(self) -> None:
        if os.getpid() == self._owner:  # false in a process that was forked from the owner
            self._over.set()
            self.stop()

    def _write(self, parts: Sequence[Buffer]) -> bool:
        try:
            for part in parts:
                self._connection.send_bytes(part)
        except OSError:
            return False
        except TypeError:  # another thread closed the connection during this message
            if not self._connection.closed:
                raise
            return False
        return True

    def _read(self) -> None:
        message: bytes | None = b""
        while message is not None:
            try:
                message = self._connection.recv_bytes()
            except (EOFError, OSError):
                message = None
            except TypeError:  # another thread closed the connection during the wait
                if not self._connection.closed:
                    raise
                message = None
            self._inbox.append(message)
            self._news.set()
