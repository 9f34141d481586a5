"""Worker processes that play episodes, one at a time each, pulled as they become free.

Plain processes with a pipe each rather than an executor: when a simulator takes its process down, the parent knows
which episode it was. Workers keep policy and environment from one evaluation to the next, ignore Ctrl-C (the parent
decides) and end with the parent, even when that is killed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from imitate.errors import EnvError, EvaluationError, UserError
from imitate.evaluation.env_trial import NO_ROLLOUTS, EnvTrial
from imitate.evaluation.environments import label
from imitate.evaluation.episode_losses import GUARD, Losses
from imitate.evaluation.episodes import (
    Episode,
    EpisodePlan,
    EpisodeRunner,
    Job,
    describe_error,
    hopeless,
    in_order,
)
from imitate.evaluation.vector_episodes import VectorJob
from imitate.processes import Lost, Pulse, Worker, heard


class EvaluationCancelledError(Exception):
    """The run ended before the evaluation did."""


class EpisodePool:
    """Up to `workers` processes, started when first needed; a context manager.

    Args:
        workers: most processes at a time; `limit` may be lowered and raised between episodes.
    """

    def __init__(self, workers: int) -> None:
        self.limit = workers
        self._workers: list[Worker] = []
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
            worker.connection.close()
        for worker in self._workers:
            worker.stop(patience_s=15.0)
        self._workers.clear()

    def run(
        self,
        job: Job,
        episodes: int,
        on_episode: Callable[[Episode], None] | None = None,
        give_up_after: int | None = None,
    ) -> list[Episode]:
        """Play episodes 0 .. episodes - 1, or only the first `give_up_after` if all of these fail.

        An episode whose worker dies, or hangs in one call of the environment for longer than the plan's
        `step_timeout_s`, is played once more in a new worker; if that one is lost too, it counts as failed.

        Raises:
            UserError: the checkpoint or the environment cannot be used, or they do not fit each other.
            EvaluationError: no episode can be played.
            EvaluationCancelledError: `cancel` was called.
        """
        waiting = deque(range(episodes))
        losses = Losses(label(job.env_meta), job.plan)
        results: dict[int, Episode] = {}
        busy: dict[Worker, int] = {}
        try:
            while (waiting or busy) and not hopeless(results, give_up_after):
                while waiting and len(busy) < self.limit:
                    index = waiting.popleft()
                    busy[self._idle_worker(busy, (job, index))] = index
                for worker in self._ready(busy, job.plan):
                    index = busy.pop(worker)
                    answer = _checked(worker.answer(job.plan.step_timeout_s))
                    if isinstance(answer, Lost):
                        self._workers.remove(worker)
                        losses.add(index, answer.reason, results, begun=worker.pulse.beats > 0)
                    episode = losses.episode(index, answer)
                    if episode is None:
                        waiting.appendleft(index)
                        continue
                    results[index] = episode
                    if on_episode is not None:
                        on_episode(episode)
        finally:
            for worker in busy:  # given up, cancelled or failed: what they play is of no use
                worker.stop()
                self._workers.remove(worker)
        return in_order(results, give_up_after)

    def run_vector(
        self, job: VectorJob, on_episode: Callable[[Episode], None] | None = None
    ) -> list[Episode]:
        """Play a whole evaluation in lockstep in one worker, which has a process per environment under it.

        Raises:
            UserError: as `run`.
            EvaluationError: the process died, or hangs while it makes an environment.
            EvaluationCancelledError: `cancel` was called.
        """
        worker = self._idle_worker({}, (job, 0))
        try:
            while True:
                self._ready({worker: 0}, job.plan)
                answer = _checked(worker.answer(job.plan.step_timeout_s))
                if isinstance(answer, Lost):
                    raise EvaluationError(f"environment '{label(job.env_meta)}': {answer.reason}")
                if isinstance(answer, list):
                    return answer
                if on_episode is not None:
                    on_episode(answer)
        except BaseException:
            worker.stop()
            self._workers.remove(worker)
            raise

    def try_env(self, trial: EnvTrial, step_timeout_s: float, stopped: Callable[[], bool]) -> None:
        """Try an environment in a worker, which is kept; ``stopped`` returns true when the result is no longer wanted.

        Raises:
            EnvError: the environment cannot be used, its process died, or it hangs.
            EvaluationCancelledError: ``stopped`` said so.
        """
        worker = self._idle_worker({}, (trial, 0))
        try:
            while not heard([worker], step_timeout_s):
                if stopped():
                    raise EvaluationCancelledError
            answer = _checked(worker.answer(step_timeout_s))
            if isinstance(answer, Lost):
                hint = f"to train without rollouts: {NO_ROLLOUTS}" if worker.pulse.beats else GUARD
                raise EnvError(f"environment '{label(trial.env_meta)}': {answer.reason}; {hint}")
        except BaseException:
            worker.stop()
            self._workers.remove(worker)
            raise

    def _idle_worker(self, busy: Mapping[Worker, int], item: Any) -> Worker:
        for worker in self._workers:
            if worker not in busy and worker.give(item):
                return worker
        worker = Worker(_serve, name="imitate-episodes")
        self._workers.append(worker)
        worker.give(item)
        return worker

    def _ready(self, busy: Mapping[Worker, int], plan: EpisodePlan) -> list[Worker]:
        """Wait for a worker that has answered, died or hung, and return all of these."""
        while not self._cancelled.is_set():
            ready = heard(list(busy), plan.step_timeout_s)
            if ready:
                return ready
        raise EvaluationCancelledError


def _checked(answer: Any) -> Any:
    """Return an answer of a worker; an error that it sent is raised."""
    if isinstance(answer, UserError):
        raise answer
    if isinstance(answer, str):
        raise EvaluationError(answer)
    return answer


def _serve(connection: Connection, pulse: Pulse) -> None:
    """Serve as a worker: receive (job, index), answer with an Episode or an error, until the parent closes the pipe."""
    import torch

    torch.set_num_threads(1)
    runner = EpisodeRunner(pulse)
    with suppress(EOFError, OSError):
        while True:
            job, index = connection.recv()
            connection.send(_answer(runner, job, index, connection, pulse))
    runner.close()


def _answer(
    runner: EpisodeRunner,
    job: Job | VectorJob | EnvTrial,
    index: int,
    connection: Connection,
    pulse: Pulse,
) -> Any:
    try:
        if isinstance(job, VectorJob):
            return job.play(connection.send, pulse)
        if isinstance(job, EnvTrial):
            return job.play(pulse)
        runner.load(job)
        return runner.play(job.env_meta, job.plan, index)
    except UserError as error:
        return error
    except (Exception, SystemExit) as error:
        return f"the evaluation failed before an episode began: {describe_error(error)}"
