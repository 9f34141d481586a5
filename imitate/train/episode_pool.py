"""Worker processes that play episodes, one at a time each, pulled as they become free.

Plain processes with a pipe each rather than an executor: when a simulator takes its process down, the parent knows
which episode it was. Workers keep policy and environment from one evaluation to the next, ignore Ctrl-C (the parent
decides) and end with the parent, even when that is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from imitate.errors import EnvError, UserError
from imitate.train.env_trial import EnvTrial
from imitate.train.episodes import (
    Episode,
    EpisodeRunner,
    Job,
    failed_episode,
    hopeless,
    in_order,
)
from imitate.train.errors import EvaluationError
from imitate.train.vector_episodes import VectorJob


class EvaluationCancelledError(Exception):
    """The run ended before the evaluation did."""


class EpisodePool:
    """Up to `workers` processes, started when first needed; a context manager.

    Args:
        workers: most processes at a time; `limit` may be lowered and raised between episodes.
    """

    def __init__(self, workers: int) -> None:
        self.limit = workers
        self._workers: list[_Worker] = []
        self._cancelled = threading.Event()

    def __enter__(self) -> EpisodePool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def cancel(self) -> None:
        """Make `run` in another thread raise EvaluationCancelledError soon."""
        self._cancelled.set()

    def close(self) -> None:
        """End every worker."""
        for worker in self._workers:
            worker.hang_up()
        for worker in self._workers:
            worker.stop(patience_s=3.0)
        self._workers.clear()

    def run(
        self,
        job: Job,
        episodes: int,
        on_episode: Callable[[Episode], None] | None = None,
        give_up_after: int | None = None,
    ) -> list[Episode]:
        """Play episodes 0 .. episodes - 1, or only the first `give_up_after` if all of these fail.

        An episode whose worker dies is played once more in a new worker; dies that too, it counts as failed.

        Raises:
            UserError: the checkpoint or the environment cannot be used, or they do not fit each other.
            EvaluationCancelledError: `cancel` was called.
        """
        waiting = deque(range(episodes))
        deaths: dict[int, int] = {}
        results: dict[int, Episode] = {}
        busy: dict[_Worker, int] = {}
        try:
            while (waiting or busy) and not hopeless(results, give_up_after):
                while waiting and len(busy) < self.limit:
                    index = waiting.popleft()
                    busy[self._idle_worker(busy, job, index)] = index
                for worker in self._ready(busy):
                    index = busy.pop(worker)
                    episode = worker.result()
                    if episode is None:
                        self._workers.remove(worker)
                        deaths[index] = deaths.get(index, 0) + 1
                        check_alive(deaths, results, worker.exit_code)
                        if deaths[index] == 1:
                            waiting.appendleft(index)
                            continue
                        episode = failed_episode(
                            job.plan,
                            index,
                            f"its process died twice (exit code {worker.exit_code})",
                        )
                    results[index] = episode
                    if on_episode is not None:
                        on_episode(episode)
        finally:
            for worker in busy:  # given up, cancelled or failed: what they play is of no use
                worker.stop()
                self._workers.remove(worker)
        return in_order(results, give_up_after)

    def run_vector(self, job: VectorJob) -> list[Episode]:
        """Play a whole evaluation in lockstep in one worker, which has a process per environment under it.

        Raises:
            UserError: as `run`.
            EvaluationError: the process died.
            EvaluationCancelledError: `cancel` was called.
        """
        worker = self._idle_worker({}, job, 0)
        try:
            self._ready({worker: 0})
            answer = worker.answer()
        except BaseException:
            worker.stop()
            self._workers.remove(worker)
            raise
        if answer is None:
            self._workers.remove(worker)
            raise EvaluationError(f"the evaluation's process died (exit code {worker.exit_code})")
        return list(answer)

    def try_env(self, trial: EnvTrial, limit_s: float, stopped: Callable[[], bool]) -> None:
        """Try an environment in a worker, which is kept; ``stopped`` says that nobody waits any more.

        Raises:
            EnvError: the environment cannot be used, its process died, or it did not answer in time.
            EvaluationCancelledError: ``stopped`` said so.
        """
        worker = self._idle_worker({}, trial, 0)
        name = trial.env_meta.get("env_name")
        try:
            deadline = time.monotonic() + limit_s
            while not worker.connection.poll(0.5):
                if stopped():
                    raise EvaluationCancelledError
                if time.monotonic() > deadline:
                    raise EnvError(
                        f"environment '{name}' did not open and make a step within {limit_s:.0f} s"
                    )
            worker.answer()
            if worker.exit_code is not None:
                raise EnvError(
                    f"environment '{name}' ended its process (exit code {worker.exit_code}); a script that trains "
                    'must do so under `if __name__ == "__main__":`, because evaluation processes import it'
                )
        except BaseException:
            worker.stop()
            self._workers.remove(worker)
            raise

    def _idle_worker(
        self, busy: dict[_Worker, int], job: Job | VectorJob | EnvTrial, index: int
    ) -> _Worker:
        for worker in self._workers:
            if worker not in busy and worker.give(job, index):
                return worker
        worker = _Worker()
        self._workers.append(worker)
        worker.give(job, index)
        return worker

    def _ready(self, busy: dict[_Worker, int]) -> list[_Worker]:
        """Workers that answered or died; waits for one."""
        while not self._cancelled.is_set():
            heard = wait([worker.connection for worker in busy], timeout=0.5)
            if heard:
                return [worker for worker in busy if worker.connection in heard]
        raise EvaluationCancelledError


def check_alive(deaths: dict[int, int], results: dict[int, Episode], exit_code: int | None) -> None:
    """Raise EvaluationError when processes die and no episode was ever played: nothing is wrong with an episode."""
    if sum(deaths.values()) >= 4 and all(episode.error for episode in results.values()):
        raise EvaluationError(
            f"every evaluation process died (the last with exit code {exit_code}); a script that trains or evaluates "
            'must do so under `if __name__ == "__main__":`, because the processes import it'
        )


class _Worker:
    """One process and the parent's end of its pipe."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), name="imitate-episodes")
        self._process.start()
        theirs.close()

    @property
    def exit_code(self) -> int | None:
        """Of a dead process."""
        return self._process.exitcode

    def give(self, job: Job | VectorJob | EnvTrial, index: int) -> bool:
        """Hand over an episode; false if the process is gone."""
        try:
            self.connection.send((job, index))
        except (BrokenPipeError, OSError):
            return False
        return True

    def result(self) -> Episode | None:
        """The episode played; None when the process died over it."""
        answer = self.answer()
        return answer if isinstance(answer, Episode) else None

    def answer(self) -> Any:
        """What the process sent; None when it died. An error it sent is raised."""
        try:
            answer: Any = self.connection.recv()
        except (EOFError, OSError):
            self.stop()
            return None
        if isinstance(answer, UserError):
            raise answer
        if isinstance(answer, str):
            raise EvaluationError(answer)
        return answer

    def hang_up(self) -> None:
        """Let an idle process end by itself."""
        self.connection.close()

    def stop(self, patience_s: float = 0.0) -> None:
        """Hang up; a process that has not ended after so many seconds is terminated."""
        self.hang_up()
        self._process.join(timeout=patience_s)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(connection: Connection) -> None:
    """A worker's life: receive (job, index), answer with an Episode or an error, until the parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(1)
    runner = EpisodeRunner()
    while True:
        try:
            job, index = connection.recv()
        except (EOFError, OSError):
            break
        answer: Any
        try:
            if not isinstance(job, Job):
                answer = job.play()
            else:
                runner.load(job)
                answer = runner.play(job.env_meta, job.plan, index)
        except UserError as error:
            answer = error
        except Exception as error:
            answer = (
                f"the evaluation failed before an episode began: {type(error).__name__}: {error}"
            )
        try:
            connection.send(answer)
        except (BrokenPipeError, OSError):
            break
    runner.close()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
