"""Interface between a crew and the place where its workers run, and the messages that pass it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from imitate.errors import UserError
from imitate.system.processes import STEP_TIMEOUT_S

POLL_S = 0.5
"""Longest wait between two looks at the workers, and so the accuracy of limits."""


class CancelledError(Exception):
    """The results are no longer wanted."""


class Reports(Protocol):
    """A worker's way to tell, while it works on an item, how far it is."""

    def __call__(self, call: str) -> None:
        """Say which call of the environment begins now, "" at its end: see :data:`imitate.system.processes.Beat`."""

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
        call_s: in one call of an environment; making one may take five times as long. None: no limit.
        quiet_s: between two calls, for a prediction, a file. None: no limit.
        item_s: for a whole item. None: no limit.
        start_s: until a worker begins. None: no limit.
    """

    call_s: float | None = STEP_TIMEOUT_S
    quiet_s: float | None = 600.0
    item_s: float | None = None
    start_s: float | None = 300.0


@dataclass(frozen=True)
class Lost:
    """An item without a result.

    Attributes:
        reason: in words.
        died: its worker died or was ended because it hung, which says nothing about other items.
        begun: the worker had begun to work.
        error: the error that the work raised, where it is one of the user's.
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
    """A value that comes ahead of the result."""

    value: Any


@dataclass(frozen=True)
class Unprepared:
    """A worker whose factory failed; it has ended.

    Attributes:
        error: of the user, or :class:`imitate.errors.WorkerError`.
    """

    error: UserError


@dataclass(frozen=True)
class Ready:
    """News of a worker without an item: it has waited for a place and has got it."""


Message = Answer | Note | Lost | Unprepared | Ready


class Member(Protocol):
    """One worker, which has at most one item at a time."""

    def waits(self) -> bool:
        """Return true as long as there is no place for it to run; an item given to it meanwhile waits here."""

    def give(self, packed: Any) -> bool:
        """Send an item that its backend has packed, without waiting for it to arrive.

        Returns:
            False if the worker is gone; that is heard of it next, too.
        """

    def answer(self) -> Message:
        """Return what was heard of it: a :class:`Lost` that has ``died`` where it is gone or was ended as hung."""

    def dismiss(self) -> None:
        """Let an idle worker end, without waiting for it."""

    def stop(self, patience_s: float = 0.0) -> None:
        """End the worker, by force if it has not ended after so many seconds."""


AnyMember = TypeVar("AnyMember", bound=Member)


class Backend(Protocol[AnyMember]):
    """Place where workers run."""

    @property
    def host(self) -> str:
        """Address of this machine as the workers reach it."""

    @property
    def places(self) -> int:
        """Workers that fit, by the machine's processors: a good number of them."""

    def start(self, prepare: Prepare) -> AnyMember:
        """Start a worker, without waiting for it."""

    def pack(self, item: Any) -> Any:
        """Return an item in the form that workers are given; one that many are given is packed once.

        Values of an item that other items carry too are best a :class:`imitate.crew.Shared`.
        """

    def heard(
        self, members: Sequence[AnyMember], limits: Limits, timeout_s: float = POLL_S
    ) -> list[AnyMember]:
        """Return the workers that have sent something, have got a place, are gone or hang.

        Waits at most so long for the first of them.
        """
