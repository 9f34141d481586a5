"""Interface between a crew and its back end (the place where its workers run), and their messages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from imitate.errors import UserError
from imitate.system.processes import STEP_TIMEOUT_S

POLL_S = 0.5
"""Longest time between two checks of the workers, in seconds; time limits are kept with this accuracy."""


class CancelledError(Exception):
    """Raised if a crew was cancelled: its results are no longer wanted."""


class Reports(Protocol):
    """Reports of a worker on its progress with an item."""

    def __call__(self, call: str) -> None:
        """Report the environment call that begins, or "" at its end; see :data:`~imitate.system.processes.Beat`."""

    def note(self, value: Any) -> None:
        """Send a picklable value to the owner of the crew before the result of the item."""


Work = Callable[[Any], Any]
"""Function from an item to its result, both picklable; its ``close()``, if it has one, is called at the end."""
Prepare = Callable[[Reports], Work]
"""Factory of a worker's function, called once in each worker; picklable."""


@dataclass(frozen=True)
class Limits:
    """Times in seconds after which a worker counts as hung; None for no limit.

    Attributes:
        call_s: limit of one call of an environment; creating an environment may take five times as long.
        quiet_s: limit of the time between two calls, for example for a prediction or reading a file.
        item_s: limit of the work on a whole item.
        start_s: limit of the time until a new worker reports that it runs.
    """

    call_s: float | None = STEP_TIMEOUT_S
    quiet_s: float | None = 600.0
    item_s: float | None = None
    start_s: float | None = 300.0


@dataclass(frozen=True)
class Lost:
    """Message of a worker in place of the result of an item, because the work failed.

    Attributes:
        reason: the reason, for a message to the user.
        died: true if the worker died, or was ended because it hung; other items may still succeed.
        begun: true if the worker had started.
        error: the error that the work raised, if it is a UserError.
    """

    reason: str
    died: bool = False
    begun: bool = field(default=True, compare=False)
    error: UserError | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Answer:
    """Message of a worker with the result of its item."""

    value: Any


@dataclass(frozen=True)
class Note:
    """Message of a worker with a value that it sends before the result of its item."""

    value: Any


@dataclass(frozen=True)
class Unprepared:
    """Last message of a worker whose factory failed.

    Attributes:
        error: the UserError that the factory raised, or a :class:`imitate.errors.WorkerError` for any other exception.
    """

    error: UserError


@dataclass(frozen=True)
class Ready:
    """Message of a worker without an item: it has waited for resources and has now started."""


Message = Answer | Note | Lost | Unprepared | Ready


class Member(Protocol):
    """One worker, which has at most one item at a time."""

    def waits(self) -> bool:
        """Return true while the worker waits for free resources; an item given to it is sent once it starts."""

    def give(self, packed: Any) -> bool:
        """Send an item, packed by :meth:`Backend.pack`, without waiting for it to arrive.

        Returns:
            false if the worker process has ended; :meth:`answer` then returns a :class:`Lost`.
        """

    def answer(self) -> Message:
        """Return the worker's next message: a :class:`Lost` with ``died`` if the worker has ended or hung."""

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
        """Number of workers for which there are processors, a good default for the number of workers."""

    def start(self, prepare: Prepare) -> AnyMember:
        """Start a worker, without waiting for it."""

    def pack(self, item: Any) -> Any:
        """Return an item in the form in which it is sent; an item for several workers is packed once.

        Use :class:`imitate.crew.Shared` for values that several items contain.
        """

    def heard(
        self, members: Sequence[AnyMember], limits: Limits, timeout_s: float = POLL_S
    ) -> list[AnyMember]:
        """Return the workers that have sent a message, started, ended or hung.

        The call waits at most ``timeout_s`` for the first such worker.
        """
