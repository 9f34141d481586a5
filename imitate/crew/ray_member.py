"""A worker on a Ray cluster, seen from its owner process."""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imitate.crew.backend import POLL_S, Answer, Limits, Lost, Message, Note, Ready, Unprepared
from imitate.crew.ray_host import CONTROL, SILENT_S, Origin
from imitate.crew.serving import unpickled
from imitate.crew.shared import Ledger
from imitate.errors import EnvError, UserError, WorkerError

DEAF_S = SILENT_S + 60.0
"""Seconds without an answer after which an actor counts as lost."""


@dataclass(frozen=True)
class RayPacked:
    """An item in the form for workers on Ray.

    Attributes:
        data: the item, pickled, or a reference to it.
        values: its shared values by name, in the same form.
    """

    data: Any
    values: Mapping[str, Any]


class RayMember:
    """One worker.

    Args:
        ray: the package.
        actor: a :class:`~imitate.crew.ray_host.Host`, not begun.
        prepare: makes the function of the worker, pickled.
        origin: this process.

    Attributes:
        awaited: reference to its next message, or None if none is expected.
        is_placed: true if it has started and is not known to be gone.
    """

    def __init__(self, ray: Any, actor: Any, prepare: bytes, origin: Origin) -> None:
        self._ray, self._actor = ray, actor
        self._inbox, self._ledger = deque[Message](), Ledger()
        self._unsent: RayPacked | None = None
        self._limits, self._changes = Limits(), 0
        self._has_begun = self._has_answered = self._has_failed = self.is_placed = False
        self._ended: Any = None
        self.awaited: Any = actor.begin.remote(prepare, origin)
        self._looked, self._silent_s = time.monotonic(), 0.0

    def waits(self) -> bool:
        """Return true while it waits for resources."""
        if not self._has_begun and not self._inbox and self._is_there(self.awaited):
            self.receive()
        return not self._has_begun and not self._inbox

    def give(self, packed: RayPacked) -> bool:
        """Send a packed item; return false if the worker is gone."""
        if self.waits():
            self._unsent = packed
            return True
        if self._has_failed:
            return not self._has_answered
        if self._has_answered and self._is_there(self._ended):
            self._ask()  # how it ended
            return False
        self._inbox.clear()
        self._send(packed)
        return True

    def limit(self, limits: Limits) -> None:
        """Change the limits of the current item."""
        if limits != self._limits:
            self._limits, self._changes = limits, self._changes + 1
            if self._has_begun and self.awaited is not None:
                self._control("limit").remote(limits, self._changes)

    def has_news(self) -> bool:
        """Return true if it has sent a message, has started, is gone or hangs."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, 2 * POLL_S), now
        self._silent_s += passed if self._has_begun else 0.0
        if self._silent_s > DEAF_S and self.awaited is not None and not self._inbox:
            self._lose(f"its node did not answer within {DEAF_S:g} s")
        return bool(self._inbox)

    def receive(self) -> None:
        """Receive its available message."""
        reference, self.awaited, self._silent_s = self.awaited, None, 0.0
        try:
            heard = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._fail(error)
            return
        if not self._has_begun:
            self._begin()
            return
        self._inbox += [unpickled(part) if isinstance(part, bytes) else part for part in heard]
        if not self._inbox or isinstance(self._inbox[-1], Note):
            self._ask()
        else:
            self._has_answered |= isinstance(self._inbox[-1], Answer)

    def answer(self) -> Message:
        """Return its next message, or a loss."""
        return self._inbox.popleft()

    def give_up(self, error: UserError) -> None:
        """Report as its message that it could not be started."""
        self._inbox.append(Unprepared(error))

    def dismiss(self) -> None:
        """Let the idle worker end."""
        if self.is_placed:
            self._control("dismiss").remote()

    def stop(self, patience_s: float = 0.0) -> None:
        """End the worker, by force if it has not ended after ``patience_s``."""
        if patience_s and self._ended is not None:
            self._ray.wait([self._ended], timeout=patience_s)
        self.is_placed, self.awaited = False, None
        if self._actor is not None:
            self._ray.kill(self._actor)
        self._actor = None

    def _begin(self) -> None:
        self._has_begun = self.is_placed = True
        self._ended = self._control("ended").remote()
        if self._unsent is None:
            self._inbox.append(Ready())
        else:
            self._send(self._unsent)
        self._unsent = None

    def _send(self, packed: RayPacked) -> None:
        header = self._ledger.header(list(packed.values))
        self._ask(pickle.dumps(header), *(packed.values[key] for key in header.keys), packed.data)

    def _ask(self, *parts: Any) -> None:
        self._silent_s = 0.0
        self.awaited = self._actor.hear.remote(self._limits, self._changes, *parts)

    def _control(self, method: str) -> Any:
        return getattr(self._actor, method).options(concurrency_group=CONTROL)

    def _is_there(self, reference: Any) -> bool:
        return bool(self._ray.wait([reference], timeout=0)[0])

    def _fail(self, error: Exception) -> None:
        """Turn an error of Ray into a message."""
        cause = getattr(error, "cause", None)
        if isinstance(cause, UserError):
            self._refuse(cause)
        elif not self._has_begun and not isinstance(error, self._ray.exceptions.RayActorError):
            self._refuse(EnvError(f"a node of the cluster cannot run workers: {_last_line(error)}"))
        elif not self._has_begun and "creation task" in str(error):
            self._refuse(WorkerError(f"a node cannot run workers: {_last_line(error)}"))
        else:
            self._lose(_words(error))

    def _refuse(self, error: UserError) -> None:
        self._has_failed, self.is_placed = True, False
        self._inbox.append(Unprepared(error))

    def _lose(self, reason: str) -> None:
        self._has_failed, self.is_placed = True, False
        self._inbox.append(Lost(reason, died=True, begun=self._has_begun))


def _words(error: Exception) -> str:
    """Describe the end of an actor; it reports the losses of its process itself."""
    if "node" in str(error) and "died" in str(error):
        return "its node was lost"
    return f"its node or its parent process was lost ({type(error).__name__})"


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
