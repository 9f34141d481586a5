"""Tasks for workers: play an episode, play a whole evaluation in lockstep, or try an environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from imitate.crew import Reports
from imitate.evaluation.env_trial import EnvTrial
from imitate.evaluation.episodes import Episode, EpisodeRunner, Job
from imitate.evaluation.vector_episodes import VectorJob


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

    def play(self, runner: EpisodeRunner, reports: Reports) -> Episode:
        """Play the episode."""
        runner.load(self.job)
        return runner.play(self.job.env_meta, self.job.plan, self.index, reports.note)


@dataclass(frozen=True)
class Lockstep:
    """A whole evaluation in lockstep; episodes are sent as they end."""

    job: VectorJob

    def play(self, runner: EpisodeRunner, reports: Reports) -> list[Episode]:
        """Play all episodes."""
        return self.job.play(reports.note, reports)


@dataclass(frozen=True)
class Trial:
    """Trial of an environment."""

    trial: EnvTrial

    def play(self, runner: EpisodeRunner, reports: Reports) -> None:
        """Try the environment."""
        self.trial.play(reports)


class Player:
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
