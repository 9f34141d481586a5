"""Results of an evaluation, and the account of episodes whose process died or hung."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from imitate.config.from_data import rollout_horizon
from imitate.crew import Lost
from imitate.crew.crew import TRIES
from imitate.errors import EvaluationError
from imitate.evaluate.episodes import EpisodeResult, failed_episode
from imitate.evaluate.late import EpisodePlan, Lateness
from imitate.functional.statistics import wilson_interval

LONG_DEMO = 0.6
"""Demonstrations longer than this share of the horizon count as long as it."""


@dataclass(frozen=True)
class EvalResult:
    """Episodes of an evaluation and their summary.

    Attributes:
        planned: episodes requested; fewer were played if the evaluation was given up as hopeless.
        longest_demo: steps of the longest demonstration that the policy learned from, or None if unknown.
        late: delay of the predictions, or None if there was none.
    """

    env_name: str
    checkpoint: str | None
    episodes: tuple[EpisodeResult, ...]
    planned: int
    horizon: int
    seed: int
    mode: str
    workers: int
    wall_s: float
    video: str | None = None
    warnings: tuple[str, ...] = ()
    longest_demo: int | None = None
    late: Lateness | None = None

    @property
    def successes(self) -> int:
        """Number of successful episodes."""
        return sum(self.success)

    @property
    def success(self) -> list[bool]:
        """Success of each episode."""
        return [episode.success for episode in self.episodes]

    @property
    def returns(self) -> list[float]:
        """Sum of rewards of each episode."""
        return [episode.episode_return for episode in self.episodes]

    @property
    def lengths(self) -> list[int]:
        """Environment steps of each episode."""
        return [episode.length for episode in self.episodes]

    @property
    def seeds(self) -> list[int]:
        """Environment seed of each episode."""
        return [episode.seed for episode in self.episodes]

    @property
    def success_rate(self) -> float:
        """Share of successful episodes."""
        return self.successes / len(self.episodes)

    @property
    def success_rate_at_end(self) -> float:
        """Share of episodes whose last step was a success."""
        return fmean(episode.success_at_end for episode in self.episodes)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson 95 % interval of the success rate."""
        low, high = wilson_interval(self.successes, len(self.episodes))
        return float(low), float(high)

    @property
    def mean_return(self) -> float:
        """Mean sum of rewards."""
        return fmean(self.returns)

    @property
    def agents(self) -> dict[str, dict[str, float]]:
        """Mean return and success rate of each agent, if there are several."""
        played = [episode.agents for episode in self.episodes if episode.agents is not None]
        return {
            name: {
                "mean_return": fmean(float(each[name]["return"]) for each in played),
                "success_rate": fmean(float(each[name]["success"]) for each in played),
            }
            for name in (played[0] if played else ())
        }

    @property
    def mean_length(self) -> float:
        """Mean number of steps."""
        return fmean(self.lengths)

    @property
    def gave_up(self) -> bool:
        """True if the evaluation was stopped as hopeless."""
        return len(self.episodes) < self.planned

    @property
    def not_played(self) -> int:
        """Number of episodes that failed to play twice; they count as failures."""
        return sum(episode.error is not None for episode in self.episodes)

    @property
    def cpu_models(self) -> list[str]:
        """Models of the processors that played the episodes, if known."""
        return sorted({episode.cpu for episode in self.episodes if episode.cpu is not None})

    @property
    def out_of_time(self) -> int:
        """Number of failed episodes that ended at the horizon."""
        return sum(
            not episode.success and episode.error is None and episode.length >= self.horizon
            for episode in self.episodes
        )

    @property
    def ended_by_env(self) -> int | None:
        """Most steps of a failed episode, if the environment ended all failed ones before the horizon, else None."""
        ended = [e.length for e in self.episodes if not e.success and e.error is None]
        return max(ended) if ended and max(ended) < self.horizon else None

    def horizon_note(self, option: str) -> str | None:
        """Return a note if the horizon may be too short: most failures end at it, and demonstrations are about as long.

        Args:
            option: option that sets a longer horizon, such as ``--horizon ``.
        """
        failures = len(self.episodes) - self.successes
        if self.longest_demo is None or self.longest_demo < LONG_DEMO * self.horizon:
            return None
        if not self.out_of_time or 2 * self.out_of_time < failures:
            return None
        return (
            f"{self.out_of_time} of {failures} failures ended at the horizon of {self.horizon}; demonstrations last up "
            f"to {self.longest_demo} steps: {option}{rollout_horizon([self.longest_demo])}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "env": self.env_name,
            "checkpoint": self.checkpoint,
            "episodes": len(self.episodes),
            "planned_episodes": self.planned,
            "successes": self.successes,
            "success_rate": self.success_rate,
            "success_rate_95": list(self.interval),
            "success_rate_at_end": self.success_rate_at_end,
            "mean_return": self.mean_return,
            "mean_length": self.mean_length,
            **({"agents": self.agents} if self.agents else {}),
            "horizon": self.horizon,
            "out_of_time": self.out_of_time,
            "longest_demo": self.longest_demo,
            "seed": self.seed,
            "mode": self.mode,
            "workers": self.workers,
            "cpu_models": self.cpu_models,
            **({} if self.late is None else asdict(self.late)),
            "wall_s": self.wall_s,
            "video": self.video,
            "gave_up": self.gave_up,
            "not_played": self.not_played,
            "warnings": list(self.warnings),
            "per_episode": [episode.to_dict() for episode in self.episodes],
        }


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
        self, index: int, reason: str, results: Mapping[int, EpisodeResult], *, begun: bool = True
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

    def episode(self, index: int, answer: EpisodeResult | Lost) -> EpisodeResult | None:
        """Return the episode's final result: played, or failed; None if it must be tried again."""
        reasons = self._reasons.get(index, [])
        if not isinstance(answer, Lost):
            first = reasons[0] if reasons else None
            return replace(answer, first_error=first) if first else answer
        if len(reasons) < TRIES:
            return None
        words = f"environment '{self._env_name}': {reasons[-1]}, in {TRIES} tries"
        return failed_episode(self._plan, index, words)
