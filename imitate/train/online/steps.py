"""Steps of several environments, as collectors pass them to replay buffers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
        """Return the signals (n, S) of the n steps that are not lost, or None without any."""
        return (
            self.signals if self.signals is None or self.lost is None else self.signals[~self.lost]
        )

    @property
    def taken_obs(self) -> Obs:
        """Return the observations (n, ...) of the n steps that are not lost."""
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
        lanes: (N,) numbers of the environments in them.
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
    lost_lanes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def num_steps(self) -> int:
        """Number of environment steps, without those of failed environments."""
        lost = sum(int(step.lost.sum()) for step in self.steps if step.lost is not None)
        return len(self.steps) * len(self.lanes) - lost
