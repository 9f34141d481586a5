"""Evaluations played by workers: the wanted episodes, their results, and when each evaluation is finished."""

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
        on_frames: called with the frames of episodes in the video, as they arrive.
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
        number: its index among the planned evaluations.
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
    """Bookkeeping of one evaluation: its finished episodes, and whether it is over.

    Attributes:
        number: its index among the evaluations that are played together.
        is_told: true if its outcome was already returned.
    """

    def __init__(self, number: int, planned: Planned) -> None:
        self.number, self._planned = number, planned
        self._losses = Losses(label(planned.job.env_meta), planned.job.plan)
        self._results = {episode.index: episode for episode in planned.earlier}
        self._error: UserError | EvaluationError | None = None
        self._start = time.perf_counter()
        self.is_told = False

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

    def note(self, index: int, result: Episode | Lost) -> None:
        """Record the result of an episode."""
        if isinstance(result, Lost) and not result.died:
            self._error = self._error or failure(result, "")
        episode = None if self._error else self._losses.episode(index, result)
        if episode is not None:
            self._results[index] = episode
            if self._planned.on_episode is not None:
                self._planned.on_episode(episode)

    def told(self) -> Played:
        """Return the outcome of a finished evaluation."""
        self.is_told = True
        episodes = in_order(self._results, self._planned.give_up_after)
        return Played(self.number, self._error or episodes, timed(self._start))


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
