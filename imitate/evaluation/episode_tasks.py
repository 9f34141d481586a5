"""Tasks of the workers that play episodes: an episode, a whole evaluation in lockstep, the trial of an environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from imitate.crew import Reports
from imitate.evaluation.env_trial import EnvTrial
from imitate.evaluation.episodes import Episode, EpisodeRunner, Job
from imitate.evaluation.vector_episodes import VectorJob


class Task(Protocol):
    """Item of the crew; picklable."""

    def play(self, runner: EpisodeRunner, reports: Reports) -> Any:
        """Do it, with the runner of the process."""


@dataclass(frozen=True)
class EpisodeTask:
    """One episode; its frames are sent ahead.

    Attributes:
        number: of its evaluation among those that are played together.
        index: of the episode.
        job: its evaluation.
    """

    number: int
    index: int
    job: Job

    def play(self, runner: EpisodeRunner, reports: Reports) -> Episode:
        """See :class:`Task`."""
        runner.load(self.job)
        return runner.play(self.job.env_meta, self.job.plan, self.index, reports.note)


@dataclass(frozen=True)
class Lockstep:
    """A whole evaluation; its episodes are sent as they end."""

    job: VectorJob

    def play(self, runner: EpisodeRunner, reports: Reports) -> list[Episode]:
        """See :class:`Task`."""
        return self.job.play(reports.note, reports)


@dataclass(frozen=True)
class Trial:
    """Trial of an environment."""

    trial: EnvTrial

    def play(self, runner: EpisodeRunner, reports: Reports) -> None:
        """See :class:`Task`."""
        self.trial.play(reports)


class Player:
    """Work of a process: plays tasks with one runner, which keeps policy and environment."""

    def __init__(self, reports: Reports) -> None:
        import torch

        torch.set_num_threads(1)
        self._reports, self._runner = reports, EpisodeRunner(reports)

    def __call__(self, task: Task) -> Any:
        """Do a task."""
        return task.play(self._runner, self._reports)

    def close(self) -> None:
        """Close the environments."""
        self._runner.close()
