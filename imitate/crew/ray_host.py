"""Remote side of a worker on a Ray cluster: an actor with the worker's process on the same node.

The process is one of :class:`~imitate.crew.local.LocalBackend`, so limits, reports and loss messages are the same as
for local workers. The actor itself only forwards messages: it also answers while the work hangs, and it unpickles none
of them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from imitate.crew.backend import POLL_S, Limits, Lost
from imitate.crew.lifeline import Address, hold
from imitate.crew.local import LocalBackend
from imitate.crew.shared import unpickle
from imitate.errors import EnvError
from imitate.system.processes import LOOK_S
from imitate.system.version import __version__

CARRIED = ("IMITATE_TRUST_MODULES",)
"""Environment variables that workers inherit from their owner process."""
SILENT_S = 10.0
"""Longest time in which an actor sends nothing while its process works."""


CONTROL = "control"
"""Concurrency group of an actor's methods that are answered while its process works."""


@dataclass(frozen=True)
class Origin:
    """Owner process of workers.

    Attributes:
        lifeline: address of its :class:`~imitate.crew.lifeline.Lifeline`.
        name: name of the workers' processes.
        threads: number of threads that a worker's libraries may use.
        version: version of this package there.
        paths: folders of its modules, used if nodes have them, too.
        folder: its working folder, used in the same way.
        environ: its values of the variables in :data:`CARRIED`.
    """

    lifeline: Address
    name: str
    threads: int
    version: str = __version__
    paths: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    folder: str = field(default_factory=os.getcwd)
    environ: dict[str, str] = field(
        default_factory=lambda: {name: os.environ[name] for name in CARRIED if name in os.environ}
    )


class Prepare:
    """Factory of a worker's function, pickled; unpickling this gives the factory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> Any:
        return unpickle, (self._data,)

    def __call__(self, reports: Any) -> Any:
        """Match the signature of a factory; never called."""
        raise TypeError("the factory is packed: call unpickle on its data before it is used")


class Host:
    """Parent of one worker process.

    Methods other than :meth:`begin` and :meth:`hear` run in Ray's concurrency group :data:`CONTROL`, so they can be
    called while one of these two waits.
    """

    def begin(self, prepare: bytes, origin: Origin) -> None:
        """Start the process.

        Raises:
            EnvError: this node does not fit the owner process.
        """
        if origin.version != __version__:
            raise EnvError(
                f"imitate {__version__} is installed there and {origin.version} here: install the same version"
            )
        _end_with(origin)
        self._limits, self._changes = Limits(), 0
        self._backend = LocalBackend(origin.name)
        self._member = self._backend.start(Prepare(prepare))

    def hear(self, limits: Limits, changes: int, *parts: Any) -> list[bytes | Lost]:
        """Return the process's next pickled message, or nothing after :data:`SILENT_S`.

        Args:
            limits: times after which the process counts as hung.
            changes: number of earlier changes of the limits; calls of :meth:`limit` may overtake this one.
            parts: parts of a message to send first, see :meth:`imitate.crew.local.LocalMember.send`.
        """
        self.limit(limits, changes)
        if parts:
            self._member.send([memoryview(part) for part in parts])
        heard: list[bytes | Lost] = []
        deadline = time.monotonic() + SILENT_S
        while not self._listen(heard) and time.monotonic() < deadline:
            pass
        return heard

    def _listen(self, heard: list[bytes | Lost]) -> bool:
        """Wait for :data:`imitate.crew.backend.POLL_S` at most; return true if something was heard."""
        while self._backend.heard([self._member], self._limits, 0.0 if heard else POLL_S):
            heard.append(self._member.received())
            if isinstance(heard[-1], Lost):
                break
        return bool(heard)

    def limit(self, limits: Limits, changes: int) -> None:
        """Set other limits while the process works, unless newer ones have come before."""
        if changes >= self._changes:
            self._limits, self._changes = limits, changes

    def ended(self) -> None:
        """Return when the process has ended."""
        self._member.join()

    def dismiss(self) -> None:
        """Let the process end once it is idle."""
        self._member.dismiss()


def _end_with(origin: Origin) -> None:
    """Let this process, and so its worker, end with its raylet and with the owner process."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        hold(origin.lifeline, lambda: os._exit(1))
    except OSError as error:
        host, port, _ = origin.lifeline
        raise EnvError(
            f"{host}:{port}, where this command listens, cannot be reached from there: {error}"
        ) from None
    _settle(origin)


def _settle(origin: Origin) -> None:
    """Give started processes the same environment as where the command runs."""
    sys.path += [path for path in origin.paths if path not in sys.path and os.path.exists(path)]
    with suppress(OSError):
        os.chdir(origin.folder)
    os.environ.update(origin.environ)
    os.environ["OMP_NUM_THREADS"] = str(origin.threads)
    vars(sys.modules["__main__"]).pop(
        "__file__", None
    )  # Ray's own hook, which a spawned process would run
