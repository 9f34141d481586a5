"""Evaluations whose episodes are played by workers: what is wanted of each, what is there, when it is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from imitate.crew import Lost
from imitate.errors import EvaluationError, UserError
from imitate.evaluation.environments import label
from imitate.evaluation.episode_losses import Losses
from imitate.evaluation.episode_tasks import EpisodeTask
from imitate.evaluation.episodes import Episode, Job, hopeless, in_order, timed
from imitate.evaluation.frames import OnFrames


@dataclass(frozen=True)
class Planned:
    """Episodes 0 .. episodes - 1 of a job, or only the first ``give_up_after`` if all of these fail.

    Attributes:
        on_episode: called with each episode as it ends.
        on_frames: called with frames of the episodes that are to be seen in a video, as they come.
        earlier: episodes that were played before and are not played again.
    """

    job: Job
    episodes: int
    on_episode: Callable[[Episode], None] | None = None
    give_up_after: int | None = None
    on_frames: OnFrames | None = None
    earlier: tuple[Episode, ...] = ()


@dataclass(frozen=True)
class Played:
    """Outcome of a planned evaluation.

    Attributes:
        number: its place among the planned ones.
        outcome: its episodes, or the reason why it failed.
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


class Evaluation:
    """Bookkeeping of one evaluation: which of its episodes are there, and when it is over.

    Attributes:
        number: its place among those that are played together.
        is_told: its outcome was asked for.
    """

    def __init__(self, number: int, planned: Planned) -> None:
        self.number, self._planned = number, planned
        self._losses = Losses(label(planned.job.env_meta), planned.job.plan)
        self._results = {episode.index: episode for episode in planned.earlier}
        self._error: UserError | EvaluationError | None = None
        self._start = time.perf_counter()
        self.is_told = False

    def tasks(self) -> Iterator[EpisodeTask]:
        """Yield a task for each episode that is missing, as long as they are wanted."""
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
            self._error = self._error or failure(result, "")
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


def failure(loss: Lost, died: str) -> UserError | EvaluationError:
    """Return the error to raise for an evaluation that has no episodes.

    Args:
        loss: of its first episode.
        died: words for a worker that died.
    """
    if loss.error is not None:
        return loss.error
    unplayed = f"the evaluation failed before an episode began: {loss.reason}"
    return EvaluationError(died if loss.died else unplayed)
