"""Worker processes that play episodes, one at a time each, pulled as they become free.

Workers keep policy and environment from one evaluation to the next. Of several evaluations all episodes lie in one
queue, so that no worker waits for the last episodes of one before the next begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

from imitate.crew import CancelledError, Crew, Limits, Lost, Reports
from imitate.crew.local import LocalBackend
from imitate.errors import EnvError, EvaluationError, UserError
from imitate.evaluation.env_trial import NO_ROLLOUTS, EnvTrial
from imitate.evaluation.environments import label
from imitate.evaluation.episode_losses import GUARD, Losses
from imitate.evaluation.episodes import (
    Episode,
    EpisodePlan,
    EpisodeRunner,
    Job,
    hopeless,
    in_order,
    timed,
)
from imitate.evaluation.vector_episodes import VectorJob

EvaluationCancelledError = CancelledError
"""The run ended before the evaluation did."""


@dataclass(frozen=True)
class Planned:
    """Episodes 0 .. episodes - 1 of a job, or only the first ``give_up_after`` if all of these fail.

    Attributes:
        on_episode: called with each episode as it ends.
    """

    job: Job
    episodes: int
    on_episode: Callable[[Episode], None] | None = None
    give_up_after: int | None = None


@dataclass(frozen=True)
class Played:
    """Outcome of a planned evaluation.

    Attributes:
        number: its place among the planned ones.
        outcome: its episodes, or why there are none.
        wall_s: seconds since its first episode began.
    """

    number: int
    outcome: list[Episode] | UserError | EvaluationError
    wall_s: float

    def episodes(self) -> list[Episode]:
        """Return the episodes.

        Raises:
            UserError: the checkpoint or the environment cannot be used, or they do not fit each other.
            EvaluationError: no episode can be played.
        """
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class EpisodePool:
    """Up to `workers` processes, started when first needed; a context manager.

    Args:
        workers: most processes at a time; `limit` may be lowered and raised between episodes.
    """

    def __init__(self, workers: int) -> None:
        self._crew: Crew[Any, Any] = Crew(
            _Player, workers, backend=LocalBackend("imitate-episodes")
        )

    @property
    def limit(self) -> int:
        """Most processes that play at a time."""
        return self._crew.limit

    @limit.setter
    def limit(self, workers: int) -> None:
        self._crew.limit = workers

    def __enter__(self) -> EpisodePool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def cancel(self) -> None:
        """Make `run` in another thread raise EvaluationCancelledError soon."""
        self._crew.cancel()

    def close(self) -> None:
        """End every worker."""
        self._crew.close()

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
        (played,) = self.run_all([Planned(job, episodes, on_episode, give_up_after)])
        return played.episodes()

    def run_all(self, planned: Sequence[Planned]) -> Generator[Played, None, None]:
        """Play several evaluations, and yield each as it ends; see `run` for their episodes.

        An evaluation that fails does not keep the others from being played.

        Raises:
            EvaluationCancelledError: `cancel` was called.
        """
        evaluations = [_Evaluation(number, entry) for number, entry in enumerate(planned)]
        left = len(evaluations)
        if not left:
            return
        results = self._crew.as_completed(
            (task for evaluation in evaluations for task in evaluation.tasks()),
            limits=_limits(planned[0].job.plan),
            on_loss=lambda task, loss: evaluations[task.number].note_loss(task.index, loss),
        )
        with closing(results):
            for done in results:
                evaluation = evaluations[done.item.number]
                if evaluation.is_told:  # it was given up meanwhile
                    continue
                evaluation.note(done.item.index, done.result)
                if evaluation.is_over:
                    yield evaluation.told()
                    left -= 1
                    if not left:
                        return

    def run_vector(
        self, job: VectorJob, on_episode: Callable[[Episode], None] | None = None
    ) -> list[Episode]:
        """Play a whole evaluation in lockstep in one worker, which has a process per environment under it.

        Raises:
            UserError: as `run`.
            EvaluationError: the process died, or hangs while it makes an environment.
            EvaluationCancelledError: `cancel` was called.
        """

        def on_note(task: Task, episode: Episode) -> None:
            if on_episode is not None:
                on_episode(episode)

        limits = _limits(job.plan)
        (done,) = self._crew.as_completed([_Lockstep(job)], limits=limits, tries=1, on_note=on_note)
        if isinstance(done.result, Lost):
            raise _failure(
                done.result, f"environment '{label(job.env_meta)}': {done.result.reason}"
            )
        played: list[Episode] = done.result
        return played

    def try_env(self, trial: EnvTrial, step_timeout_s: float, stopped: Callable[[], bool]) -> None:
        """Try an environment in a worker, which is kept; ``stopped`` returns true when the result is no longer wanted.

        Raises:
            EnvError: the environment cannot be used, its process died, or it hangs.
            EvaluationCancelledError: ``stopped`` said so.
        """
        limits = Limits(call_s=step_timeout_s)
        (done,) = self._crew.as_completed([_Trial(trial)], limits=limits, tries=1, stopped=stopped)
        loss = done.result
        if isinstance(loss, Lost):
            hint = f"to train without rollouts: {NO_ROLLOUTS}" if loss.begun else GUARD
            words = f"environment '{label(trial.env_meta)}': {loss.reason}; {hint}"
            raise loss.error or EnvError(words)


def _limits(plan: EpisodePlan) -> Limits:
    return Limits(call_s=plan.step_timeout_s)


def _failure(loss: Lost, died: str) -> UserError | EvaluationError:
    """Return the error to raise for an evaluation that has no episodes."""
    if loss.error is not None:
        return loss.error
    unplayed = f"the evaluation failed before an episode began: {loss.reason}"
    return EvaluationError(died if loss.died else unplayed)


class _Evaluation:
    """Bookkeeping of one evaluation: which of its episodes are there, and when it is over."""

    def __init__(self, number: int, planned: Planned) -> None:
        self.number, self._planned = number, planned
        self._losses = Losses(label(planned.job.env_meta), planned.job.plan)
        self._results: dict[int, Episode] = {}
        self._error: UserError | EvaluationError | None = None
        self._start = time.perf_counter()
        self.is_told = False

    def tasks(self) -> Iterator[_EpisodeTask]:
        """Yield a task for each episode, as long as they are wanted."""
        self._start = time.perf_counter()
        for index in range(self._planned.episodes):
            if self.is_over:
                return
            yield _EpisodeTask(self.number, index, self._planned.job)

    @property
    def is_over(self) -> bool:
        """True if nothing more is to be played."""
        if self._error is not None or len(self._results) == self._planned.episodes:
            return True
        return hopeless(self._results, self._planned.give_up_after)

    def note_loss(self, index: int, loss: Lost) -> bool:
        """Note that a worker was lost; return true if the episode is to be played again."""
        try:
            self._losses.add(index, loss.reason, self._results, begun=loss.begun)
        except EvaluationError as error:
            self._error = error
        return not self.is_over

    def note(self, index: int, result: Episode | Lost) -> None:
        """Note the end of an episode."""
        if isinstance(result, Lost) and not result.died:
            self._error = self._error or _failure(result, "")
        episode = None if self._error else self._losses.episode(index, result)
        if episode is not None:
            self._results[index] = episode
            if self._planned.on_episode is not None:
                self._planned.on_episode(episode)

    def told(self) -> Played:
        """Return the outcome of an evaluation that is over."""
        self.is_told = True
        episodes = in_order(self._results, self._planned.give_up_after)
        return Played(self.number, self._error or episodes, timed(self._start))


# ---- in the processes ----------------------------------------------------------------------------


class Task(Protocol):
    """Item of the crew; picklable."""

    def play(self, runner: EpisodeRunner, reports: Reports) -> Any:
        """Do it, with the runner of the process."""


@dataclass(frozen=True)
class _EpisodeTask:
    number: int
    index: int
    job: Job

    def play(self, runner: EpisodeRunner, reports: Reports) -> Episode:
        runner.load(self.job)
        return runner.play(self.job.env_meta, self.job.plan, self.index)


@dataclass(frozen=True)
class _Lockstep:
    job: VectorJob

    def play(self, runner: EpisodeRunner, reports: Reports) -> list[Episode]:
        return self.job.play(reports.note, reports)


@dataclass(frozen=True)
class _Trial:
    trial: EnvTrial

    def play(self, runner: EpisodeRunner, reports: Reports) -> None:
        self.trial.play(reports)


class _Player:
    """Work of a process: plays tasks with one runner, which keeps policy and environment."""

    def __init__(self, reports: Reports) -> None:
        import torch

        torch.set_num_threads(1)
        self._reports, self._runner = reports, EpisodeRunner(reports)

    def __call__(self, task: Task) -> Any:
        return task.play(self._runner, self._reports)

    def close(self) -> None:
        """Close the environments."""
        self._runner.close()
