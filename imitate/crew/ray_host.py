"""Remote side of a worker on a Ray cluster: an actor with the worker's process on the same node.

The process is started by :class:`~imitate.crew.local.LocalBackend`, so limits, reports and loss messages are the same
as for local workers. The actor only forwards messages, without unpickling them, so it answers even while the work
hangs.
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
"""Longest time in seconds for which an actor sends nothing while its process works."""


CONTROL = "control"
"""Ray's concurrency group of the actor methods that return while the worker process is busy."""


@dataclass(frozen=True)
class Origin:
    """Owner process of workers.

    Attributes:
        lifeline: address of its :class:`~imitate.crew.lifeline.Lifeline`.
        name: name of the workers' processes.
        threads: number of threads that a worker's libraries may use.
        version: version of this package in the owner process.
        paths: module search path of the owner process; a node uses the folders that it has too.
        folder: working folder of the owner process; a node uses it if it has it too.
        environ: environment variables of the owner process that :data:`CARRIED` names.
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
        """Raise WorkerError; the method only gives this class the type of a factory."""
        raise TypeError("the factory is packed: call unpickle on its data before it is used")


class Host:
    """Parent of one worker process.

    Methods other than :meth:`begin` and :meth:`hear` run in Ray's concurrency group :data:`CONTROL`, so they can be
    called while one of these two waits.
    """

    def begin(self, prepare: bytes, origin: Origin) -> None:
        """Start the process.

        Raises:
            EnvError: this node has another version of imitate, or cannot reach the owner process.
        """
        if origin.version != __version__:
            raise EnvError(
                f"a node has imitate {__version__}, but this machine has {origin.version}: install the "
                "same version on both"
            )
        _end_with(origin)
        self._limits, self._changes = Limits(), 0
        self._backend = LocalBackend(origin.name)
        self._member = self._backend.start(Prepare(prepare))

    def hear(self, limits: Limits, changes: int, *parts: Any) -> list[bytes | Lost]:
        """Return the pickled messages of the process; an empty list if there is none within :data:`SILENT_S`.

        Args:
            limits: times after which the process counts as hung.
            changes: number of earlier changes of the limits, because a later call of :meth:`limit` may arrive first.
            parts: parts of an item to send first, see :meth:`imitate.crew.local.LocalMember.send`; empty to send none.
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
        """Add messages that arrive within :data:`imitate.crew.backend.POLL_S` to ``heard``; return true if any did."""
        while self._backend.heard([self._member], self._limits, 0.0 if heard else POLL_S):
            heard.append(self._member.received())
            if isinstance(heard[-1], Lost):
                break
        return bool(heard)

    def limit(self, limits: Limits, changes: int) -> None:
        """Set new limits while the process works, unless newer limits have already arrived."""
        if changes >= self._changes:
            self._limits, self._changes = limits, changes

    def ended(self) -> None:
        """Return when the process has ended."""
        self._member.join()

    def dismiss(self) -> None:
        """Let the process end once it is idle."""
        self._member.dismiss()


def _end_with(origin: Origin) -> None:
    """End this actor and its worker process when its raylet (Ray's process of the node) or the owner process ends."""
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
            f"a node of the cluster cannot reach this machine at {host}:{port}: {error}; allow this connection"
        ) from None
    _settle(origin)


def _settle(origin: Origin) -> None:
    """Give the worker process the module path, working folder and environment variables of the owner process."""
    sys.path += [path for path in origin.paths if path not in sys.path and os.path.exists(path)]
    with suppress(OSError):
        os.chdir(origin.folder)
    os.environ.update(origin.environ)
    os.environ["OMP_NUM_THREADS"] = str(origin.threads)
    vars(sys.modules["__main__"]).pop(
        "__file__", None
    )  # a hook of Ray, which a spawned process would run
