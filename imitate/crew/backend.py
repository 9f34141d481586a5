"""Interface between a crew and its back end (the place where its workers run), and their messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from imitate.errors import UserError
from imitate.system.processes import STEP_TIMEOUT_S

POLL_S = 0.5
"""Longest time between two checks of the workers, in seconds, which is the accuracy of limits."""


class CancelledError(Exception):
    """The results are no longer wanted."""


class Reports(Protocol):
    """Reports of a worker on its progress with an item."""

    def __call__(self, call: str) -> None:
        """Report the environment call that begins, or "" at its end; see :data:`~imitate.system.processes.Beat`."""

    def note(self, value: Any) -> None:
        """Send a picklable value ahead of the result."""


Work = Callable[[Any], Any]
"""Function from an item to its result, both picklable; its ``close()``, if it has one, is called at the end."""
Prepare = Callable[[Reports], Work]
"""Factory of a worker's function, called once in each worker; picklable."""


@dataclass(frozen=True)
class Limits:
    """Seconds after which a worker counts as hung.

    Attributes:
        call_s: in one call of an environment; making one may take five times as long. None for no limit.
        quiet_s: between two calls, for example for a prediction or a file. None for no limit.
        item_s: for a whole item. None for no limit.
        start_s: until a worker begins. None for no limit.
    """

    call_s: float | None = STEP_TIMEOUT_S
    quiet_s: float | None = 600.0
    item_s: float | None = None
    start_s: float | None = 300.0


@dataclass(frozen=True)
class Lost:
    """An item without a result.

    Attributes:
        reason: reason as text.
        died: true if its worker died or was ended because it hung; other items may still succeed.
        begun: true if the worker had begun to work.
        error: the error that the work raised, if it is a UserError.
    """

    reason: str
    died: bool = False
    begun: bool = field(default=True, compare=False)
    error: UserError | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Answer:
    """Result of an item."""

    value: Any


@dataclass(frozen=True)
class Note:
    """A value that is sent before the result."""

    value: Any


@dataclass(frozen=True)
class Unprepared:
    """A worker whose factory failed; it has ended.

    Attributes:
        error: a UserError, or :class:`imitate.errors.WorkerError`.
    """

    error: UserError


@dataclass(frozen=True)
class Ready:
    """Message of a worker without an item: it has waited for resources and has now started."""


Message = Answer | Note | Lost | Unprepared | Ready


class Member(Protocol):
    """One worker, which has at most one item at a time."""

    def waits(self) -> bool:
        """Return true while there are no resources to run it; items given to it meanwhile wait."""

    def give(self, packed: Any) -> bool:
        """Send an item that its backend has packed, without waiting for it to arrive.

        Returns:
            false if the worker is gone, which is also its next answer.
        """

    def answer(self) -> Message:
        """Return its message: a :class:`Lost` with ``died`` if it is gone or was ended because it hung."""

    def dismiss(self) -> None:
        """Let an idle worker end, without waiting for it."""

    def stop(self, patience_s: float = 0.0) -> None:
        """End the worker, by force if it has not ended after ``patience_s``."""


AnyMember = TypeVar("AnyMember", bound=Member)


class Backend(Protocol[AnyMember]):
    """Place where workers run."""

    @property
    def host(self) -> str:
        """Address at which workers reach this machine."""

    @property
    def places(self) -> int:
        """Number of workers that fit on the processors; a good default."""

    def start(self, prepare: Prepare) -> AnyMember:
        """Start a worker, without waiting for it."""

    def pack(self, item: Any) -> Any:
        """Return an item in the form for workers; an item for several workers is packed once.

        Use :class:`imitate.crew.Shared` for values that several items contain.
        """

    def heard(
        self, members: Sequence[AnyMember], limits: Limits, timeout_s: float = POLL_S
    ) -> list[AnyMember]:
        """Return the workers that have sent a message, have started, are gone or hang.

        It waits at most ``timeout_s`` for the first of them.
        """
