"""Steps of several environments, as collectors pass them to replay buffers, and figures of their latest episodes."""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.system.statistics import rate_of

Array = NDArray[Any]
Obs = dict[str, Array]


@dataclass(frozen=True)
class Step:
    """A step of N environments in raw values: ``obs`` before it, ``actions`` taken, ``next_obs`` after it.

    Attributes:
        obs: (N, ...) by key.
        actions: (N, A) in the environment's form; the executed actions if it reports them.
        rewards: (N,) float32.
        terminals: (N,) bool, true if the task ended.
        timeouts: (N,) bool, true if the time limit ended the episode.
        next_obs: (N, ...) by key; at an end, the last observation of the episode, not the first of the next.
        lost: (N,) bool, true if there is no step: the environment failed and its running episode is void, or the lane's
            agent has ended its episode before the others and waits for the next one. None if all are steps.
        extras: (N, ...) outputs of the policy besides its actions, such as ``log_prob``.
        intervened: (N,) bool, true if a person acted, whose actions are in ``actions``. None if no person acted.
        signals: (N, S) float32, the named rewards of ``algo.rewards``; None without any.
    """

    obs: Obs
    actions: Array
    rewards: NDArray[np.float32]
    terminals: NDArray[np.bool_]
    timeouts: NDArray[np.bool_]
    next_obs: Obs
    lost: NDArray[np.bool_] | None = None
    extras: dict[str, Array] = field(default_factory=dict)
    intervened: NDArray[np.bool_] | None = None
    signals: NDArray[np.float32] | None = None

    @property
    def ends(self) -> NDArray[np.bool_]:
        """(N,) bool, true where an episode ended, by a terminal, a timeout or a failure."""
        ends: NDArray[np.bool_] = self.terminals | self.timeouts
        return ends if self.lost is None else ends | self.lost

    @property
    def taken_signals(self) -> NDArray[np.float32] | None:
        """(n, S) named rewards of the n steps that are not lost; None without named rewards."""
        return (
            self.signals if self.signals is None or self.lost is None else self.signals[~self.lost]
        )

    @property
    def taken_obs(self) -> Obs:
        """Observations (n, ...) of the n steps that are not lost, by key."""
        if self.lost is None:
            return self.obs
        return {key: seen[~self.lost] for key, seen in self.obs.items()}


@dataclass(frozen=True)
class EpisodeRecord:
    """Figures of one finished episode.

    Attributes:
        env_return: sum of the rewards.
        discounted_return: discounted return from the first step on: sum of discount^(t - 1) r_t over t = 1 .. length.
        success: true if it succeeded at any step, None if the environment does not report it.
        info: the scalars of the last ``info``.
        mean_discounted_return: discounted return from a step on, averaged over the steps of the episode; NaN if it was
            not recorded.
        totals: the scalars of all ``info`` of the episode: their sums, the means of keys that end in ``@step``, the
            greatest values of keys that end in ``@max``.
    """

    env_return: float
    discounted_return: float
    length: int
    success: bool | None
    info: dict[str, float] = field(default_factory=dict)
    mean_discounted_return: float = math.nan
    totals: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Collected:
    """Steps and episodes from one collection.

    Attributes:
        steps: steps in order.
        lanes: (N,) lane numbers of their environments.
        episodes: finished episodes.
        version: version of the weights that acted.
        messages: warnings for the console, such as of an environment that crashed.
        lost_lanes: environments whose process is gone; their running episodes are void.
    """

    steps: list[Step]
    lanes: NDArray[np.int64]
    episodes: list[EpisodeRecord]
    version: int = 0
    messages: tuple[str, ...] = ()
    lost_lanes: NDArray[np.int64] = field(default_factory=lambda: np.array([], dtype=np.int64))

    @property
    def num_steps(self) -> int:
        """Number of environment steps, without those of failed environments."""
        lost = sum(int(step.lost.sum()) for step in self.steps if step.lost is not None)
        return len(self.steps) * len(self.lanes) - lost


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
        """Return the state as plain lists and scalars."""
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
        """Restore the state from :meth:`state_dict`."""
        self.steps, self.episodes = int(state["steps"]), int(state["episodes"])
        self._latest.clear()
        self._latest.extend(EpisodeRecord(*row) for row in state["latest"])


def _means(name: str, found: list[dict[str, float]]) -> dict[str, float]:
    """Return the means of the keys that all episodes have, except success, which counts at any step."""
    keys = set.intersection(*map(set, found)) - {"success"}
    return {f"Metrics/{name}[{key}]": fmean(e[key] for e in found) for key in sorted(keys)}
