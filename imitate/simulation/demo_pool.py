"""Worker processes that each work on one demo at a time.

Plain processes with a pipe each rather than an executor: when a simulator takes its process down or hangs, the parent
knows which demo it was, and the others continue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from imitate.errors import EnvError, UserError
from imitate.processes import STEP_TIMEOUT_S, Beat, Lost, Pulse, Worker, heard

__all__ = ["DemoPool", "Lost", "Work"]

Result = TypeVar("Result")
Work = Callable[[str], Result]

_TRIES = 2
_AHEAD = 2  # demos a worker may be ahead of the one that is waited for: each lies in memory


class DemoPool(Generic[Result]):
    """Results of demos, in their order, from several processes; a context manager.

    Args:
        prepare: called once in each process with a function that receives each call of an environment that begins (see
            :func:`imitate.envs.watched.watched`); gives the function that is called with a demo's name. Picklable.
        workers: processes.
        step_timeout_s: a call of the environment that takes longer ends its process.

    Attributes:
        problems: losses that a second try recovered, in words.
    """

    def __init__(
        self,
        prepare: Callable[[Beat], Work[Result]],
        workers: int,
        step_timeout_s: float = STEP_TIMEOUT_S,
    ) -> None:
        self._prepare, self._limit_s = prepare, step_timeout_s
        self._num = max(1, workers)
        self._workers: list[Worker] = []
        self.problems: list[str] = []

    def __enter__(self) -> DemoPool[Result]:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for worker in self._workers:
            worker.stop(patience_s=0.0 if kind else 5.0)
        self._workers.clear()

    def results(self, demos: Sequence[str]) -> Iterator[tuple[str, Result | Lost]]:
        """Yield each demo with its result, or the reason for none; it is tried twice if its process dies or hangs.

        Raises:
            UserError: a process could not be prepared.
        """
        waiting, found = deque(range(len(demos))), dict[int, Result | Lost]()
        busy: dict[Worker, int] = {}
        tries = dict.fromkeys(waiting, 0)
        for wanted in range(len(demos)):
            while wanted not in found:
                while (
                    waiting and len(busy) < self._num and waiting[0] < wanted + _AHEAD * self._num
                ):
                    number = waiting.popleft()
                    tries[number] += 1
                    busy[self._give(busy, demos[number])] = number
                for worker in heard(list(busy), self._limit_s):
                    number = busy.pop(worker)
                    result = worker.answer(self._limit_s)
                    if isinstance(result, UserError):
                        raise result
                    if isinstance(result, Lost) and result.died:
                        self._workers.remove(worker)
                        if tries[number] < _TRIES:
                            self.problems.append(f"{demos[number]}: {result.reason}; tried again")
                            waiting.appendleft(number)
                            continue
                        result = Lost(f"{result.reason}, in {_TRIES} tries", died=True)
                    found[number] = result
            yield demos[wanted], found.pop(wanted)

    def _give(self, busy: dict[Worker, int], demo: str) -> Worker:
        for worker in [worker for worker in self._workers if worker not in busy]:
            if worker.give(demo):
                return worker
            worker.stop()
            self._workers.remove(worker)
        worker = Worker(_serve, (self._prepare,), name="imitate-demos")
        self._workers.append(worker)
        worker.give(demo)
        return worker


def _serve(connection: Connection, pulse: Pulse, prepare: Callable[[Beat], Work[Any]]) -> None:
    """Serve as a worker: receive a name, answer with the result or the reason, until the parent closes the pipe."""
    with suppress(EOFError, OSError):
        demo = connection.recv()
        try:
            work = prepare(pulse)
        except UserError as error:
            connection.send(error)
            return
        except SystemExit as error:
            connection.send(EnvError(f"the environment called sys.exit({error.code!r})"))
            return
        while True:
            connection.send(_answer(work, demo))
            demo = connection.recv()


def _answer(work: Work[Any], demo: str) -> Any:
    try:
        return work(demo)
    except UserError as error:
        return Lost(str(error))
    except SystemExit as error:
        return Lost(f"the environment called sys.exit({error.code!r})")
    except (
        Exception
    ) as error:  # a simulator that blew up: this demo is lost, the next one has its own scene
        return Lost(f"{type(error).__name__}: {error}".splitlines()[0])
