"""The policy of all workers: who gets which item, what happens when a worker is lost, in which order results come."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from typing_extensions import Self

from imitate.crew.backend import (
    Backend,
    CancelledError,
    Limits,
    Lost,
    Member,
    Message,
    Note,
    Prepare,
    Ready,
    Unprepared,
)
from imitate.crew.local import LocalBackend
from imitate.errors import WorkerError

TRIES = 2
AHEAD = 2
"""Items per worker that may be done before the one that is waited for: their results lie in memory."""
PATIENCE_S = 15.0
"""Seconds in which idle workers close what they hold, such as simulators."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Done(Generic[Item, Result]):
    """An item that is over.

    Attributes:
        number: its place among the items, from 0.
        item: as given.
        result: what its worker returned, or the reason why there is nothing.
        retried: losses after which it was tried again.
    """

    number: int
    item: Item
    result: Result | Lost
    retried: tuple[Lost, ...] = ()


@dataclass
class _Task:
    number: int
    item: Any
    losses: list[Lost] = field(default_factory=list)


def _ignored(item: Any, value: Any) -> None:
    """Do nothing with a note."""


def _again(item: Any, loss: Lost) -> bool:
    """Have an item tried again."""
    return True


class Crew(Generic[Item, Result]):
    """Up to ``workers`` workers, started when first needed and kept until the end; a context manager.

    A worker has one item at a time. An item whose worker dies or hangs is tried again in a new one; if that one is
    lost too, the item is over, with a :class:`Lost` for a result, and the others go on. An exception of the work ends
    its item at once: it would be raised again. Results do not depend on the number of workers, as long as the work
    remembers nothing from item to item.

    Args:
        prepare: called once in each worker, with :class:`Reports`; returns the function from an item to its result.
            Picklable, as items and results are.
        workers: most workers at a time; ``limit`` may be lowered and raised while items are worked on.
        limits: after which a worker counts as hung.
        backend: where workers run; None: in processes of this machine.
    """

    def __init__(
        self,
        prepare: Prepare,
        workers: int = 1,
        *,
        limits: Limits | None = None,
        backend: Backend[Any] | None = None,
    ) -> None:
        self.limit = max(1, workers)
        self._prepare, self._limits = prepare, limits or Limits()
        self._backend: Backend[Any] = LocalBackend() if backend is None else backend
        self._members: list[Member] = []
        self._cancelled = threading.Event()
        self._has_answered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(patience_s=0.0 if kind else PATIENCE_S)

    def cancel(self) -> None:
        """Let whoever waits for results, in another thread, soon get a CancelledError; likewise all who ask later."""
        self._cancelled.set()

    def close(self, patience_s: float = PATIENCE_S) -> None:
        """End every worker, by force if it has not ended after so many seconds, which count for all together."""
        if patience_s:
            for member in self._members:
                member.dismiss()
        deadline = time.monotonic() + patience_s
        for member in self._members:
            member.stop(max(0.0, deadline - time.monotonic()))
        self._members.clear()

    def in_order(
        self, items: Iterable[Item], *, limits: Limits | None = None
    ) -> Iterator[Done[Item, Result]]:
        """Yield items in the order given; workers are at most :data:`AHEAD` items each ahead of it.

        Raises:
            UserError: a worker cannot be prepared.
            CancelledError: :meth:`cancel` was called.
        """
        wanted, early = 0, dict[int, Done[Item, Result]]()

        def may_begin(number: int) -> bool:
            return number < wanted + AHEAD * self.limit

        with closing(self._results(items, limits, TRIES, may_begin=may_begin)) as results:
            for done in results:
                early[done.number] = done
                while wanted in early:
                    yield early.pop(wanted)
                    wanted += 1

    def as_completed(
        self,
        items: Iterable[Item],
        *,
        limits: Limits | None = None,
        tries: int = TRIES,
        on_note: Callable[[Item, Any], None] = _ignored,
        on_loss: Callable[[Item, Lost], bool] = _again,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Generator[Done[Item, Result], None, None]:
        """Yield items as they are done. Leaving the loop early ends the workers that are busy.

        Args:
            items: taken one by one as workers become free. An iterator that had no more is asked again after each
                result, which may have decided what is next.
            limits: in place of the crew's.
            tries: number of workers that may be lost on one item.
            on_note: called with an item and a value that its worker sends ahead of the result.
            on_loss: called with an item and the loss of its worker, each time; returns false where no other try is
                wanted.
            stopped: asked now and then; true ends the work as :meth:`cancel` does.

        Raises:
            UserError: a worker cannot be prepared.
            CancelledError: :meth:`cancel` was called, or ``stopped`` said so.
        """
        return self._results(
            items, limits, tries, on_note=on_note, on_loss=on_loss, stopped=stopped
        )

    def _results(
        self,
        items: Iterable[Item],
        limits: Limits | None,
        tries: int,
        *,
        may_begin: Callable[[int], bool] = lambda number: True,
        on_note: Callable[[Item, Any], None] = _ignored,
        on_loss: Callable[[Item, Lost], bool] = _again,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Generator[Done[Item, Result], None, None]:
        tasks = _Tasks(items, may_begin)
        busy: dict[Member, _Task] = {}
        try:
            while True:
                standby = self._hand_out(tasks, busy)
                if not (busy or standby):
                    return
                for member in self._heard([*busy, *standby], limits or self._limits, stopped):
                    answer = self._checked(member.answer())
                    if member not in busy:
                        if isinstance(answer, Lost):
                            self._drop(member)
                        continue
                    task = busy[member]
                    if isinstance(answer, Note):
                        on_note(task.item, answer.value)
                        continue
                    del busy[member]
                    if isinstance(answer, Lost) and answer.died:
                        self._drop(member)
                        task.losses.append(answer)
                        if on_loss(task.item, answer) and len(task.losses) < tries:
                            tasks.again(task)
                            continue
                    yield _done(task, answer)
        finally:
            for member in busy:  # left early, cancelled or failed: their results are of no use
                self._drop(member)

    def _hand_out(self, tasks: _Tasks, busy: dict[Member, _Task]) -> list[Member]:
        """Give items to workers; return workers that wait for a place, as many as items that wait for a worker."""
        while True:
            waiting: list[_Task] = []
            while len(busy) + len(waiting) < self.limit and (task := tasks.take()) is not None:
                if not self._given(task, busy, len(waiting)):
                    waiting.append(task)
            for task in reversed(waiting):
                tasks.again(task)
            standby = [member for member in self._members if member not in busy and member.waits()]
            if busy or standby or not waiting:
                return standby[: len(waiting)]
            # All workers that waited for a place have got one meanwhile, or have failed.

    def _given(self, task: _Task, busy: dict[Member, _Task], standby: int) -> bool:
        """Give an item to a worker that has none, or to a new one; False where that one has to wait for a place.

        Args:
            task: with the item.
            busy: workers that have an item; the one that gets this item is entered.
            standby: items that wait already, each for a worker that waits for a place.
        """
        while True:
            idle = [member for member in self._members if member not in busy]
            member = next((member for member in idle if not member.waits()), None)
            is_new = member is None
            if member is None:
                if len(idle) > standby:
                    return False
                member = self._backend.start(self._prepare)
                self._members.append(member)
                if member.waits():
                    return False
            if member.give(self._backend.pack(task.item)) or is_new:
                busy[member] = task
                return True
            self._drop(member)

    def _heard(
        self, members: Sequence[Member], limits: Limits, stopped: Callable[[], bool]
    ) -> Sequence[Member]:
        """Wait for workers that have sent something, have got a place, are gone or hang."""
        while not (self._cancelled.is_set() or stopped()):
            heard = self._backend.heard(members, limits)
            if heard:
                return heard
        raise CancelledError

    def _checked(self, message: Message) -> Any:
        """Return the result, a :class:`Note` or a :class:`Lost`; raise where workers cannot be prepared."""
        if isinstance(message, Unprepared):
            if not isinstance(message.error, WorkerError) or not self._has_answered:
                raise message.error
            return Lost(str(message.error), died=True)  # it could be prepared before
        if isinstance(message, (Note, Lost, Ready)):
            return message
        self._has_answered = True
        return message.value

    def _drop(self, member: Member) -> None:
        member.stop()
        if (
            member in self._members
        ):  # unless the crew was closed before a loop over its results was left
            self._members.remove(member)


class _Tasks:
    """Items that wait for a worker, those to be tried again first."""

    def __init__(self, items: Iterable[Any], may_begin: Callable[[int], bool]) -> None:
        self._items, self._may_begin = iter(items), may_begin
        self._begun, self._again = 0, deque[_Task]()

    def take(self) -> _Task | None:
        """Return the next one; None where none is left, or none may begin yet."""
        if self._again:
            return self._again.popleft()
        if not self._may_begin(self._begun):
            return None
        for item in self._items:
            self._begun += 1
            return _Task(self._begun - 1, item)
        return None

    def again(self, task: _Task) -> None:
        """Let it be the next."""
        self._again.appendleft(task)


def _done(task: _Task, result: Any) -> Done[Any, Any]:
    losses = tuple(task.losses)
    if not (isinstance(result, Lost) and result.died):
        return Done(task.number, task.item, result, losses)
    if len(losses) > 1:
        result = replace(result, reason=f"{result.reason}, in {len(losses)} tries")
    return Done(task.number, task.item, result, losses[:-1])
