"""Worker processes that each work on one demo at a time.

Plain processes with a pipe each rather than an executor: when a simulator takes its process down, the parent knows
which demo it was, and the others go on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from imitate.errors import UserError

Result = TypeVar("Result")
Work = Callable[[str], Result]

_TRIES = 2
_AHEAD = 2  # demos a worker may be ahead of the one that is waited for: each lies in memory


@dataclass(frozen=True)
class Lost:
    """A demo without a result.

    Attributes:
        reason: in words.
        died: the process died over it, which says nothing about the others.
    """

    reason: str
    died: bool = False


class DemoPool(Generic[Result]):
    """Results of demos, in their order, from several processes; a context manager.

    Args:
        prepare: called once in each process; gives the function that is called with a demo's name. Picklable.
        workers: processes.
    """

    def __init__(self, prepare: Callable[[], Work[Result]], workers: int) -> None:
        self._prepare = prepare
        self._num = max(1, workers)
        self._workers: list[_Worker] = []

    def __enter__(self) -> DemoPool[Result]:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for worker in self._workers:
            worker.stop(patience_s=0.0 if kind else 5.0)
        self._workers.clear()

    def results(self, demos: Sequence[str]) -> Iterator[tuple[str, Result | Lost]]:
        """Each demo with its result, or why there is none. One whose process dies is tried once more.

        Raises:
            UserError: a process could not be prepared.
        """
        waiting, found = deque(range(len(demos))), dict[int, Result | Lost]()
        busy: dict[_Worker, int] = {}
        tries = dict.fromkeys(waiting, 0)
        for wanted in range(len(demos)):
            while wanted not in found:
                while (
                    waiting and len(busy) < self._num and waiting[0] < wanted + _AHEAD * self._num
                ):
                    number = waiting.popleft()
                    tries[number] += 1
                    busy[self._give(busy, demos[number])] = number
                for worker in self._heard(busy):
                    number = busy.pop(worker)
                    result = worker.answer()
                    if isinstance(result, Lost) and result.died:
                        self._workers.remove(worker)
                        if tries[number] < _TRIES:
                            waiting.appendleft(number)
                            continue
                    found[number] = result
            yield demos[wanted], found.pop(wanted)

    def _give(self, busy: dict[_Worker, int], demo: str) -> _Worker:
        for worker in [worker for worker in self._workers if worker not in busy]:
            if worker.give(demo):
                return worker
            self._workers.remove(worker)
        worker = _Worker(self._prepare)
        self._workers.append(worker)
        worker.give(demo)
        return worker

    @staticmethod
    def _heard(busy: dict[_Worker, int]) -> list[_Worker]:
        """Workers that answered or died; waits for one."""
        heard = wait([worker.connection for worker in busy])
        return [worker for worker in busy if worker.connection in heard]


class _Worker:
    """One process and the parent's end of its pipe."""

    def __init__(self, prepare: Callable[[], Work[Any]]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, prepare), name="imitate-demos")
        self._process.start()
        theirs.close()

    def give(self, demo: str) -> bool:
        """Hand over a demo; false if the process is gone."""
        try:
            self.connection.send(demo)
        except OSError:
            return False
        return True

    def answer(self) -> Any:
        """What came of the demo."""
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            self.stop()
            return Lost(f"its process died twice (exit code {self._process.exitcode})", died=True)
        if isinstance(answer, UserError):
            raise answer
        return answer

    def stop(self, patience_s: float = 0.0) -> None:
        """Hang up; a process that has not ended after so many seconds is ended."""
        self.connection.close()
        self._process.join(timeout=patience_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(connection: Connection, prepare: Callable[[], Work[Any]]) -> None:
    """A worker's life: receive a name, answer with the result or the reason, until the parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        demo = connection.recv()
        try:
            work = prepare()
        except UserError as error:
            connection.send(error)
            return
        while True:
            connection.send(_answer(work, demo))
            demo = connection.recv()


def _answer(work: Work[Any], demo: str) -> Any:
    try:
        return work(demo)
    except UserError as error:
        return Lost(str(error))
    except (
        Exception
    ) as error:  # a simulator that blew up: this demo is lost, the next one has its own scene
        return Lost(f"{type(error).__name__}: {error}".splitlines()[0])


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
