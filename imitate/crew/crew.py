"""Assignment of items to workers, handling of lost workers, and order of results."""

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
"""Largest number of items per worker that may be finished before the next item in order; their results use memory."""
PATIENCE_S = 15.0
"""Seconds that idle workers have to close their resources, such as simulators."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Done(Generic[Item, Result]):
    """A finished item.

    Attributes:
        number: index of the item, from 0.
        item: the item as the caller gave it.
        result: the worker's result, or a :class:`Lost` if the item failed.
        retried: losses of workers after which the item was retried.
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
    """Ignore a note; the default of ``on_note``."""


def _again(item: Any, loss: Lost) -> bool:
    """Return true to request another try of a lost item; the default of ``on_loss``."""
    return True


class Crew(Generic[Item, Result]):
    """Up to ``workers`` workers, started when first needed and kept until the end; a context manager.

    A worker has one item at a time. An item whose worker dies or hangs is retried in a new worker. If the new worker is
    also lost, the result of the item is a :class:`Lost`, and the other items continue. An item whose work raises an
    exception is not retried, because the exception would be raised again. Results do not depend on the number of
    workers, as long as the work remembers nothing from item to item.

    Args:
        prepare: called once in each worker, with :class:`Reports`; returns the function from an item to its result.
            Picklable, as items and results are.
        workers: largest number of workers at a time; ``limit`` may be changed meanwhile.
        limits: times after which a worker counts as hung.
        backend: back end of the workers, or None for processes on this machine.
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
        """Cancel the crew: every thread that waits for results, now or later, soon gets a CancelledError."""
        self._cancelled.set()

    def close(self, patience_s: float = PATIENCE_S) -> None:
        """End every worker, by force if they have not all ended after ``patience_s``."""
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
        """Yield finished items in the order of ``items``; each worker finishes at most :data:`AHEAD` items in advance.

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
        """Yield items as they finish. Leaving the loop early ends the busy workers.

        Args:
            items: taken one by one as workers become free. After each result ``next`` is called again even if the
                iterator was exhausted, because the result may have produced new items.
            limits: times after which a worker counts as hung, in place of the crew's.
            tries: largest number of workers that may be lost on one item.
            on_note: called with an item and a value that its worker sends before the result.
            on_loss: called with an item and the loss of its worker, each time; returns false if no other try is wanted.
            stopped: called regularly; ends the work like :meth:`cancel` if it returns true.

        Raises:
            UserError: a worker cannot be prepared.
            CancelledError: :meth:`cancel` was called, or ``stopped`` returned true.
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
            for member in busy:  # busy only if the loop was left early, cancelled or failed
                self._drop(member)

    def _hand_out(self, tasks: _Tasks, busy: dict[Member, _Task]) -> list[Member]:
        """Give items to workers; return the workers that wait for resources, one per waiting item."""
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
            # All workers that waited for resources have meanwhile started or failed.

    def _given(self, task: _Task, busy: dict[Member, _Task], standby: int) -> bool:
        """Give an item to an idle or a new worker; return False if it must wait for resources.

        Args:
            task: the item and its earlier losses.
            busy: the task of each worker that has one; the worker that gets this item is added.
            standby: number of items that already wait, each for a worker that waits for resources.
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
        """Wait until a worker has sent a message, started, ended or hung, and return all such workers."""
        while not (self._cancelled.is_set() or stopped()):
            heard = self._backend.heard(members, limits)
            if heard:
                return heard
        raise CancelledError

    def _checked(self, message: Message) -> Any:
        """Return the result, a :class:`Note` or a :class:`Lost`; raise the error if a worker cannot be prepared."""
        if isinstance(message, Unprepared):
            if not isinstance(message.error, WorkerError) or not self._has_answered:
                raise message.error
            return Lost(str(message.error), died=True)  # another worker could be prepared
        if isinstance(message, (Note, Lost, Ready)):
            return message
        self._has_answered = True
        return message.value

    def _drop(self, member: Member) -> None:
        member.stop()
        if member in self._members:  # false if the crew was closed during the loop over its results
            self._members.remove(member)


class _Tasks:
    """Queue of items that wait for a worker; items to be retried come first."""

    def __init__(self, items: Iterable[Any], may_begin: Callable[[int], bool]) -> None:
        self._items, self._may_begin = iter(items), may_begin
        self._begun, self._again = 0, deque[_Task]()

    def take(self) -> _Task | None:
        """Return the next task; None if no task is left, or if the next one may not begin yet."""
        if self._again:
            return self._again.popleft()
        if not self._may_begin(self._begun):
            return None
        for item in self._items:
            self._begun += 1
            return _Task(self._begun - 1, item)
        return None

    def again(self, task: _Task) -> None:
        """Put a task first in the queue."""
        self._again.appendleft(task)


def _done(task: _Task, result: Any) -> Done[Any, Any]:
    losses = tuple(task.losses)
    if not (isinstance(result, Lost) and result.died):
        return Done(task.number, task.item, result, losses)
    if len(losses) > 1:
        result = replace(result, reason=f"{result.reason}, in {len(losses)} tries")
    return Done(task.number, task.item, result, losses[:-1])
