"""Returns, lengths and other figures of the latest episodes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from imitate.functional.statistics import rate_of
from imitate.train.online.steps import EpisodeRecord

MOST_EPISODES = 100


class Metrics:
    """Means over the latest episodes, at most 100.

    Names and meanings follow the library ALF: ``EnvironmentSteps``, ``NumberOfEpisodes``, ``AverageReturn``,
    ``AverageDiscountedReturn`` (the discounted return from a step on, averaged over the steps of the episode),
    ``EpisodicStartAverageDiscountedReturn`` (the return from the first step on), ``AverageEpisodeLength``,
    ``AverageReward``, ``AverageEnvInfo[key]`` of the scalars in ``info``: their sums over an episode, the means over
    its steps of keys that end in ``@step``, the greatest values of keys that end in ``@max``; and
    ``AverageEnvInfo[success]``, the share of episodes that succeeded at any step. ``LastEnvInfo[key]`` is of the last
    ``info`` of each episode.
    """

    def __init__(self) -> None:
        self.steps = self.episodes = 0
        self._latest: deque[EpisodeRecord] = deque(maxlen=MOST_EPISODES)

    def add(self, steps: int, episodes: Iterable[EpisodeRecord]) -> None:
        """Count steps, and the episodes that ended in them."""
        self.steps += steps
        for episode in episodes:
            self.episodes += 1
            self._latest.append(episode)

    def numbers(self) -> dict[str, float]:
        """Return the metrics for the logger."""
        numbers = {
            "Metrics/EnvironmentSteps": float(self.steps),
            "Metrics/NumberOfEpisodes": float(self.episodes),
        }
        latest = self._latest
        if not latest:
            return numbers
        numbers |= {
            "Metrics/AverageReturn": fmean(e.env_return for e in latest),
            "Metrics/EpisodicStartAverageDiscountedReturn": fmean(
                e.discounted_return for e in latest
            ),
            "Metrics/AverageEpisodeLength": fmean(e.length for e in latest),
            "Metrics/AverageReward": sum(e.env_return for e in latest)
            / sum(e.length for e in latest),
        }
        recorded = [e.mean_discounted_return for e in latest]
        if not any(map(math.isnan, recorded)):
            numbers["Metrics/AverageDiscountedReturn"] = fmean(recorded)
        numbers |= _means("AverageEnvInfo", [e.totals for e in latest])
        numbers |= _means("LastEnvInfo", [e.info for e in latest])
        rate = rate_of(e.success for e in latest)
        if rate is not None:
            numbers["Metrics/AverageEnvInfo[success]"] = rate.value
        return numbers

    def state_dict(self) -> dict[str, Any]:
        """State as plain lists and scalars."""
        latest = [
            [
                e.env_return,
                e.discounted_return,
                e.length,
                e.success,
                e.info,
                e.mean_discounted_return,
                e.totals,
            ]
            for e in self._latest
        ]
        return {"steps": self.steps, "episodes": self.episodes, "latest": latest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self.steps, self.episodes = int(state["steps"]), int(state["episodes"])
        self._latest.clear()
        self._latest.extend(EpisodeRecord(*row) for row in state["latest"])


def _means(name: str, found: list[dict[str, float]]) -> dict[str, float]:
    """Return the means of the keys that all episodes have, except success, which counts at any step."""
    keys = set.intersection(*map(set, found)) - {"success"}
    return {f"Metrics/{name}[{key}]": fmean(e[key] for e in found) for key in sorted(keys)}
