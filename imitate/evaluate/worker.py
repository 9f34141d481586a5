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
from imitate.evaluate.environments import NO_ROLLOUTS, EnvTrial
from imitate.evaluate.episodes import EpisodeRunner
from imitate.evaluate.job import EvalJob, OnEpisode
from imitate.evaluate.lockstep import play_lockstep
from imitate.evaluate.result import (
    GUARD,
    EpisodeResult,
    LostEpisodes,
    hopeless,
    in_order,
    label,
    timed,
)
from imitate.evaluate.settings import EpisodePlan
from imitate.evaluate.video import Frames


class Task(Protocol):
    """Task for a worker; picklable."""

    def play(self, runner: EpisodeRunner, reports: Reports) -> Any:
        """Run the task with ``runner``, which keeps the policy and the environment of this process."""


@dataclass(frozen=True)
class EpisodeTask:
    """Task to play one episode; its frames are sent before its result.

    Attributes:
        number: number of its job.
        index: index of the episode.
        plan: plan of its job.
    """

    number: int
    index: int
    plan: EpisodePlan

    def play(self, runner: EpisodeRunner, reports: Reports) -> EpisodeResult:
        """Play the episode."""
        runner.load(self.plan)
        return runner.play(self.plan, self.index, reports.note)


@dataclass(frozen=True)
class LockstepTask:
    """Task to play all episodes of a job in lockstep; each result is sent as its episode ends."""

    plan: EpisodePlan

    def play(self, runner: EpisodeRunner, reports: Reports) -> list[EpisodeResult]:
        """Play all episodes."""
        policy = self.plan.policy.load(self.plan.device)
        return play_lockstep(policy, self.plan, reports.note, reports)


@dataclass(frozen=True)
class TrialTask:
    """Task to try an environment."""

    trial: EnvTrial

    def play(self, runner: EpisodeRunner, reports: Reports) -> None:
        """Try the environment; raise EnvError if it cannot be used."""
        self.trial.play(reports)


class EpisodeWorker:
    """Runs tasks in a worker process with one runner, which keeps policy and environment."""

    def __init__(self, reports: Reports) -> None:
        import torch

        torch.set_num_threads(1)
        self._reports, self._runner = reports, EpisodeRunner(reports)

    def __call__(self, task: Task) -> Any:
        """Run a task, and return its result."""
        return task.play(self._runner, self._reports)

    def close(self) -> None:
        """Close the environments."""
        self._runner.close()


class RunningJob:
    """A job that workers play: its finished episodes, and whether it is over.

    Args:
        number: its index among the jobs that are played together.
        job: the job.
        on_episode: called with each episode as it ends.

    Attributes:
        is_reported: true if it was already returned as finished.
        wall_s: seconds since its first episode began, once it is reported.
    """

    def __init__(self, number: int, job: EvalJob, on_episode: OnEpisode | None) -> None:
        self.number, self._job = number, job
        self._tell = job.teller(on_episode)
        self._losses = LostEpisodes(job.plan)
        self._results = {episode.index: episode for episode in job.earlier}
        self._error: UserError | EvaluationError | None = None
        self._start = time.perf_counter()
        self.is_reported, self.wall_s = False, 0.0

    def tasks(self) -> Iterator[EpisodeTask]:
        """Yield a task for each missing episode, as long as the job is running."""
        self._start = time.perf_counter()
        plan = _for_workers(self._job.plan)
        for index in range(plan.settings.episodes):
            if self.is_over:
                return
            if index not in self._results:
                yield EpisodeTask(self.number, index, plan)

    def take_frames(self, frames: Frames) -> None:
        """Store frames of the video."""
        if self._job.on_frames is not None:
            self._job.on_frames(frames)

    @property
    def is_over(self) -> bool:
        """True if no more episodes need to be played."""
        plan = self._job.plan
        if self._error is not None or len(self._results) == plan.settings.episodes:
            return True
        return hopeless(self._results, plan.settings.give_up_after)

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
            self._tell(episode)

    def reported(self) -> RunningJob:
        """Mark the job as reported, and return it."""
        self.is_reported, self.wall_s = True, timed(self._start)
        return self

    def episodes(self) -> list[EpisodeResult]:
        """Return the results of the job's episodes, in order.

        Raises:
            UserError: the checkpoint or the environment cannot be used, or they do not fit each other.
            EvaluationError: no episode can be played.
        """
        if self._error is not None:
            raise self._error
        return in_order(self._results, self._job.plan.settings.give_up_after)


def failure(loss: Lost, died: str) -> UserError | EvaluationError:
    """Return the error to raise for an evaluation that has no episodes.

    Args:
        loss: report of the worker that could not play the first episode.
        died: message of the error if the episode was lost because the worker died.
    """
    if loss.error is not None:
        return loss.error
    unplayed = f"the evaluation failed before an episode began: {loss.reason}"
    return EvaluationError(died if loss.died else unplayed)


EvaluationCancelledError = CancelledError
"""Raised in an evaluation that is cancelled, because the training ended first."""


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
        """Cancel the evaluation: `run`, in another thread, soon raises EvaluationCancelledError."""
        self._crew.cancel()

    def close(self) -> None:
        """End every worker."""
        self._crew.close()

    def run(self, job: EvalJob, on_episode: OnEpisode | None = None) -> list[EpisodeResult]:
        """Play the episodes of a job.

        An episode whose worker dies, or hangs in one call of the environment for longer than the plan's
        `step_timeout_s`, is played once more in a new worker; if that one is lost too, it counts as failed.

        Raises:
            UserError: the checkpoint or the environment cannot be used, or they do not fit each other.
            EvaluationError: no episode can be played.
            EvaluationCancelledError: `cancel` was called.
        """
        if job.mode == "vector":
            return self._run_lockstep(job, on_episode)
        (played,) = self.run_all([job], on_episode)
        return played.episodes()

    def run_all(
        self, jobs: Sequence[EvalJob], on_episode: OnEpisode | None = None
    ) -> Generator[RunningJob, None, None]:
        """Play the episodes of several jobs, and yield each job as it ends; see `run` for their episodes.

        A job that fails does not keep the others from being played.

        Raises:
            EvaluationCancelledError: `cancel` was called.
        """
        running = [RunningJob(number, job, on_episode) for number, job in enumerate(jobs)]
        for job in running:
            if job.is_over:  # an earlier evaluation has played all of its episodes
                yield job.reported()
        left = [job for job in running if not job.is_reported]
        if not left:
            return
        results = self._crew.as_completed(
            (task for job in left for task in job.tasks()),
            limits=_limits(jobs[0].plan),
            on_note=lambda task, frames: running[task.number].take_frames(frames),
            on_loss=lambda task, loss: running[task.number].note_loss(task.index, loss),
        )
        with closing(results):
            for done in results:
                job = running[done.item.number]
                if job.is_reported:  # the job was already reported, so late results are ignored
                    continue
                job.note(done.item.index, done.result)
                if job.is_over:
                    yield job.reported()
                    if all(job.is_reported for job in running):
                        return

    def _run_lockstep(self, job: EvalJob, on_episode: OnEpisode | None) -> list[EpisodeResult]:
        """Play a job in lockstep in one worker, which starts a process per environment.

        Raises:
            UserError: as `run`.
            EvaluationError: the process died, or hangs while it makes an environment.
            EvaluationCancelledError: `cancel` was called.
        """
        tell = job.teller(on_episode)
        (done,) = self._crew.as_completed(
            [LockstepTask(_for_workers(job.plan))],
            limits=_limits(job.plan),
            tries=1,
            on_note=lambda task, episode: tell(episode),
        )
        if isinstance(done.result, Lost):
            raise failure(done.result, f"environment '{job.label}': {done.result.reason}")
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


def _for_workers(plan: EpisodePlan) -> EpisodePlan:
    return replace(plan, policy=plan.policy.for_workers())
