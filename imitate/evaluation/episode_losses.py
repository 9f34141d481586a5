"""Bookkeeping of episodes whose process died or hung: retry them, let them fail, or end the evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from imitate.crew import Lost
from imitate.crew.crew import TRIES
from imitate.errors import EvaluationError
from imitate.evaluation.episode_plan import EpisodePlan
from imitate.evaluation.episodes import Episode, failed_episode

HOPELESS = 4
"""Number of lost episodes without a played one after which the evaluation ends."""

GUARD = 'a script that trains or evaluates must do so under `if __name__ == "__main__":`: its processes import it'


class Losses:
    """The lost episodes of one evaluation.

    Args:
        env_name: environment's name, for messages.
        plan: plan of the episodes.
    """

    def __init__(self, env_name: str, plan: EpisodePlan) -> None:
        self._env_name, self._plan = env_name, plan
        self._reasons: dict[int, list[str]] = {}

    def add(
        self, index: int, reason: str, results: Mapping[int, Episode], *, begun: bool = True
    ) -> None:
        """Record the loss of an episode.

        Args:
            index: index of the episode.
            reason: reason of the loss, as text.
            results: finished episodes.
            begun: false if the process ended before it did anything.

        Raises:
            EvaluationError: episodes are lost one after the other and none was ever played.
        """
        self._reasons.setdefault(index, []).append(reason)
        lost = sum(map(len, self._reasons.values()))
        if lost < HOPELESS or not all(episode.error for episode in results.values()):
            return
        if not begun:
            raise EvaluationError(f"every evaluation process ended as it began ({reason}); {GUARD}")
        raise EvaluationError(
            f"environment '{self._env_name}': all {lost} attempts to play an episode failed; "
            f"the last one: {reason}"
        )

    def episode(self, index: int, answer: Episode | Lost) -> Episode | None:
        """Return the episode's final result: played, or failed; None if it must be tried again."""
        reasons = self._reasons.get(index, [])
        if not isinstance(answer, Lost):
            first = reasons[0] if reasons else None
            return replace(answer, first_error=first) if first else answer
        if len(reasons) < TRIES:
            return None
        words = f"environment '{self._env_name}': {reasons[-1]}, in {TRIES} tries"
        return failed_episode(self._plan, index, words)
