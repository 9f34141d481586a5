"""Worker processes that play episodes; each takes the next episode when it is free.

Workers keep policy and environment from one evaluation to the next. The episodes of several evaluations form one queue,
so that no worker waits for the last episodes of one evaluation.

A worker's task is to play an episode, to play a whole evaluation in lockstep, or to try an environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Protocol

from imitate.crew import CancelledError, Crew, Limits, Lost, Reports
from imitate.crew.backend import Backend
from imitate.crew.local import LocalBackend
from imitate.errors import EnvError, EvaluationError, UserError
from imitate.evaluate.env_trial import NO_ROLLOUTS, EnvTrial
from imitate.evaluate.environments import label
from imitate.evaluate.episodes import EpisodeResult, EpisodeRunner, Job, hopeless, in_order, timed
from imitate.evaluate.eval_result import GUARD, Losses
from imitate.evaluate.late import EpisodePlan
from imitate.evaluate.vector_episodes import VectorJob
from imitate.evaluate.video import Frames, OnFrames


class Task(Protocol):
    """Task for a worker; picklable."""

    def play(self, runner: EpisodeRunner, reports: Reports) -> Any:
        """Run the task with the runner of the process."""


@dataclass(frozen=True)
class EpisodeTask:
    """One episode; its frames are sent before its result.

    Attributes:
        number: number of its evaluation.
        index: index of the episode.
        job: job of its evaluation.
    """

    number: int
    index: int
    job: Job

    def play(self, runner: EpisodeRunner, reports: Reports) -> EpisodeResult:
        """Play the episode."""
        runner.load(self.job)
        return runner.play(self.job.env_meta, self.job.plan, self.index, reports.note)


@dataclass(frozen=True)
class Lockstep:
    """A whole evaluation in lockstep; episodes are sent as they end."""

    job: VectorJob

    def play(self, runner: EpisodeRunner, reports: Reports) -> list[EpisodeResult]:
        """Play all episodes."""
        return self.job.play(reports.note, reports)


@dataclass(frozen=True)
class TrialTask:
    """Trial of an environment."""

    trial: EnvTrial

    def play(self, runner: EpisodeRunner, reports: Reports) -> None:
        """Try the environment."""
        self.trial.play(reports)


class EpisodeWorker:
    """Runs tasks in a worker process with one runner, which keeps policy and environment."""

    def __init__(self, reports: Reports) -> None:
        import torch

        torch.set_num_threads(1)
        self._reports, self._runner = reports, EpisodeRunner(reports)

    def __call__(self, task: Task) -> Any:
        """Run a task."""
        return task.play(self._runner, self._reports)

    def close(self) -> None:
        """Close the environments."""
        self._runner.close()


@dataclass(frozen=True)
class EpisodeBatch:
    """Episodes 0 .. episodes - 1 of a job, or only the first ``give_up_after`` if all of these fail.

    Attributes:
        on_episode: called with each episode as it ends.
        on_frames: called with the frames of episodes in the video, as they arrive.
        earlier: episodes that were played before and are not played again.
    """

    job: Job
    episodes: int
    on_episode: Callable[[EpisodeResult], None] | None = None
    give_up_after: int | None = None
    on_frames: OnFrames | None = None
    earlier: tuple[EpisodeResult, ...] = ()


@dataclass(frozen=True)
class EpisodeResults:
    """Outcome of a planned evaluation.

    Attributes:
        number: its index among the planned evaluations.
        outcome: its episodes, or the reason why it failed.
        wall_s: seconds since its first episode began.
    """

    number: int
    outcome: list[EpisodeResult] | UserError | EvaluationError
    wall_s: float

    def episodes(self) -> list[EpisodeResult]:
        """Return the episodes.

        Raises:
            UserError: the checkpoint or the environment cannot be used, or they do not fit each other.
            EvaluationError: no episode can be played.
        """
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class Evaluation:
    """Bookkeeping of one evaluation: its finished episodes, and whether it is over.

    Attributes:
        number: its index among the evaluations that are played together.
        is_reported: true if its outcome was already returned.
    """

    def __init__(self, number: int, planned: EpisodeBatch) -> None:
        self.number, self._planned = number, planned
        self._losses = Losses(label(planned.job.env_meta), planned.job.plan)
        self._results = {episode.index: episode for episode in planned.earlier}
        self._error: UserError | EvaluationError | None = None
        self._start = time.perf_counter()
        self.is_reported = False

    def tasks(self) -> Iterator[EpisodeTask]:
        """Yield a task for each missing episode, as long as the evaluation is running."""
        self._start = time.perf_counter()
        job = self._planned.job
        job = replace(job, policy=job.policy.for_workers())
        for index in range(self._planned.episodes):
            if self.is_over:
                return
            if index not in self._results:
                yield EpisodeTask(self.number, index, job)

    @property
    def is_over(self) -> bool:
        """True if no more episodes need to be played."""
        if self._error is not None or len(self._results) == self._planned.episodes:
            return True
        return hopeless(self._results, self._planned.give_up_after)

    def note_loss(self, index: int, loss: Lost) -> bool:
        """Record that a worker was lost; return true if the episode must be played again."""
        try:
            self._losses.add(index, loss.reason, self._results, begun=loss.begun)
        except EvaluationError as error:
            self._error = error
        return not self.is_over

    def note(self, index: int, result: EpisodeResult | Lost) -> None:
        """Record the result of an episode."""
        if isinstance(result, Lost) and not result.died:
            self._error = self._error or failure(result, "")
        episode = None if self._error else self._losses.episode(index, result)
        if episode is not None:
            self._results[index] = episode
            if self._planned.on_episode is not None:
                self._planned.on_episode(episode)

    def results(self) -> EpisodeResults:
        """Return the outcome of a finished evaluation."""
        self.is_reported = True
        episodes = in_order(self._results, self._planned.give_up_after)
        return EpisodeResults(self.number, self._error or episodes, timed(self._start))


def failure(loss: Lost, died: str) -> UserError | EvaluationError:
    """Return the error to raise for an evaluation that has no episodes.

    Args:
        loss: loss of its first episode.
        died: message for a worker that died.
    """
    if loss.error is not None:
        return loss.error
    unplayed = f"the evaluation failed before an episode began: {loss.reason}"
    return EvaluationError(died if loss.died else unplayed)


EvaluationCancelledError = CancelledError
"""The run ended before the evaluation did."""


class EpisodePool:
    """Up to `workers` workers, started when first needed; a context manager.

    Args:
        workers: largest number of workers; `limit` may be changed between episodes.
        backend: back end on which they run, or None for processes on this machine.
    """

    def __init__(self, workers: int, backend: Backend[Any] | None = None) -> None:
        places = LocalBackend("imitate-episodes") if backend is None else backend
        self._crew: Crew[Any, Any] = Crew(EpisodeWorker, workers, backend=places)

    @property
    def limit(self) -> int:
        """Largest number of workers that play at the same time."""
        return self._crew.limit

    @limit.setter
    def limit(self, workers: int) -> None:
        self._crew.limit = workers

    def __enter__(self) -> EpisodePool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def cancel(self) -> None:
        """Let `run` in another thread soon raise EvaluationCancelledError."""
        self._crew.cancel()

    def close(self) -> None:
        """End every worker."""
        self._crew.close()

    def run(self, planned: EpisodeBatch) -> list[EpisodeResult]:
        """Play the episodes of an evaluation.

        An episode whose worker dies, or hangs in one call of the environment for longer than the plan's
        `step_timeout_s`, is played once more in a new worker; if that one is lost too, it counts as failed.

        Raises:
            UserError: the checkpoint or the environment cannot be used, or they do not fit each other.
            EvaluationError: no episode can be played.
            EvaluationCancelledError: `cancel` was called.
        """
        (played,) = self.run_all([planned])
        return played.episodes()

    def run_all(self, planned: Sequence[EpisodeBatch]) -> Generator[EpisodeResults, None, None]:
        """Play several evaluations, and yield each as it ends; see `run` for their episodes.

        An evaluation that fails does not keep the others from being played.

        Raises:
            EvaluationCancelledError: `cancel` was called.
        """
        evaluations = [Evaluation(number, entry) for number, entry in enumerate(planned)]
        for evaluation in evaluations:
            if evaluation.is_over:  # all of it was played before
                yield evaluation.results()
        left = sum(not evaluation.is_reported for evaluation in evaluations)
        if not left:
            return

        def on_frames(task: EpisodeTask, frames: Frames) -> None:
            take = planned[task.number].on_frames
            if take is not None:
                take(frames)

        results = self._crew.as_completed(
            (
                task
                for evaluation in evaluations
                if not evaluation.is_reported
                for task in evaluation.tasks()
            ),
            limits=_limits(planned[0].job.plan),
            on_note=on_frames,
            on_loss=lambda task, loss: evaluations[task.number].note_loss(task.index, loss),
        )
        with closing(results):
            for done in results:
                evaluation = evaluations[done.item.number]
                if evaluation.is_reported:  # it was cancelled meanwhile
                    continue
                evaluation.note(done.item.index, done.result)
                if evaluation.is_over:
                    yield evaluation.results()
                    left -= 1
                    if not left:
                        return

    def run_vector(
        self, job: VectorJob, on_episode: Callable[[EpisodeResult], None] | None = None
    ) -> list[EpisodeResult]:
        """Play a whole evaluation in lockstep in one worker, which starts a process per environment.

        Raises:
            UserError: as `run`.
            EvaluationError: the process died, or hangs while it makes an environment.
            EvaluationCancelledError: `cancel` was called.
        """

        def on_note(task: Lockstep, episode: EpisodeResult) -> None:
            if on_episode is not None:
                on_episode(episode)

        job = replace(job, policy=job.policy.for_workers())
        limits = _limits(job.plan)
        (done,) = self._crew.as_completed([Lockstep(job)], limits=limits, tries=1, on_note=on_note)
        if isinstance(done.result, Lost):
            raise failure(done.result, f"environment '{label(job.env_meta)}': {done.result.reason}")
        played: list[EpisodeResult] = done.result
        return played

    def try_env(self, trial: EnvTrial, step_timeout_s: float, stopped: Callable[[], bool]) -> None:
        """Try an environment in a worker and keep the worker; stop waiting when ``stopped`` returns true.

        Raises:
            EnvError: the environment cannot be used, its process died, or it hangs.
            EvaluationCancelledError: ``stopped`` returned true.
        """
        limits = Limits(call_s=step_timeout_s)
        (done,) = self._crew.as_completed(
            [TrialTask(trial)], limits=limits, tries=1, stopped=stopped
        )
        loss = done.result
        if isinstance(loss, Lost):
            hint = f"to train without rollouts: {NO_ROLLOUTS}" if loss.begun else GUARD
            words = f"environment '{label(trial.env_meta)}': {loss.reason}; {hint}"
            raise loss.error or EnvError(words)


def _limits(plan: EpisodePlan) -> Limits:
    return Limits(call_s=plan.step_timeout_s)
