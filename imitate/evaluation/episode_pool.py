"""Worker processes that play episodes; each takes the next episode when it is free.

Workers keep policy and environment from one evaluation to the next. The episodes of several evaluations form one queue,
so that no worker waits for the last episodes of one evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from imitate.crew import CancelledError, Crew, Limits, Lost
from imitate.crew.backend import Backend
from imitate.crew.local import LocalBackend
from imitate.errors import EnvError
from imitate.evaluation.env_trial import NO_ROLLOUTS, EnvTrial
from imitate.evaluation.environments import label
from imitate.evaluation.episode_losses import GUARD
from imitate.evaluation.episode_plan import EpisodePlan
from imitate.evaluation.episode_tasks import EpisodeTask, Lockstep, Player, Trial
from imitate.evaluation.episodes import Episode
from imitate.evaluation.frames import Frames
from imitate.evaluation.planned import Evaluation, Planned, Played, failure
from imitate.evaluation.vector_episodes import VectorJob

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
        self._crew: Crew[Any, Any] = Crew(Player, workers, backend=places)

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

    def run(self, planned: Planned) -> list[Episode]:
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

    def run_all(self, planned: Sequence[Planned]) -> Generator[Played, None, None]:
        """Play several evaluations, and yield each as it ends; see `run` for their episodes.

        An evaluation that fails does not keep the others from being played.

        Raises:
            EvaluationCancelledError: `cancel` was called.
        """
        evaluations = [Evaluation(number, entry) for number, entry in enumerate(planned)]
        for evaluation in evaluations:
            if evaluation.is_over:  # all of it was played before
                yield evaluation.told()
        left = sum(not evaluation.is_told for evaluation in evaluations)
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
                if not evaluation.is_told
                for task in evaluation.tasks()
            ),
            limits=_limits(planned[0].job.plan),
            on_note=on_frames,
            on_loss=lambda task, loss: evaluations[task.number].note_loss(task.index, loss),
        )
        with closing(results):
            for done in results:
                evaluation = evaluations[done.item.number]
                if evaluation.is_told:  # it was cancelled meanwhile
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
        """Play a whole evaluation in lockstep in one worker, which starts a process per environment.

        Raises:
            UserError: as `run`.
            EvaluationError: the process died, or hangs while it makes an environment.
            EvaluationCancelledError: `cancel` was called.
        """

        def on_note(task: Lockstep, episode: Episode) -> None:
            if on_episode is not None:
                on_episode(episode)

        job = replace(job, policy=job.policy.for_workers())
        limits = _limits(job.plan)
        (done,) = self._crew.as_completed([Lockstep(job)], limits=limits, tries=1, on_note=on_note)
        if isinstance(done.result, Lost):
            raise failure(done.result, f"environment '{label(job.env_meta)}': {done.result.reason}")
        played: list[Episode] = done.result
        return played

    def try_env(self, trial: EnvTrial, step_timeout_s: float, stopped: Callable[[], bool]) -> None:
        """Try an environment in a worker and keep the worker; stop waiting when ``stopped`` returns true.

        Raises:
            EnvError: the environment cannot be used, its process died, or it hangs.
            EvaluationCancelledError: ``stopped`` returned true.
        """
        limits = Limits(call_s=step_timeout_s)
        (done,) = self._crew.as_completed([Trial(trial)], limits=limits, tries=1, stopped=stopped)
        loss = done.result
        if isinstance(loss, Lost):
            hint = f"to train without rollouts: {NO_ROLLOUTS}" if loss.begun else GUARD
            words = f"environment '{label(trial.env_meta)}': {loss.reason}; {hint}"
            raise loss.error or EnvError(words)


def _limits(plan: EpisodePlan) -> Limits:
    return Limits(call_s=plan.step_timeout_s)
