"""One step of several environments at once, from collectors to replay buffers."""

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
    """A step of N environments, raw values: ``obs`` is seen, ``actions`` taken, ``next_obs`` the result.

    Attributes:
        obs: (N, ...) by key.
        actions: (N, A), as the environment takes them; where it tells what it executed instead, that.
        rewards: (N,) float32.
        terminals: (N,) bool, the task ended.
        timeouts: (N,) bool, the clock ended.
        next_obs: (N, ...) by key; at an end the last observation of the episode, not the first of the next one.
        lost: (N,) bool, this is no step: the environment failed, and the episode that ran is void; or the agent of the
            lane has ended its episode before the others, and waits for the next one. None: all are steps.
        extras: (N, ...) outputs of the policy beside its actions, such as ``log_prob``.
        intervened: (N,) bool, a person acted, whose actions are among ``actions``. None: nowhere.
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

    @property
    def ends(self) -> NDArray[np.bool_]:
        """(N,) true where an episode ended, by a terminal, a timeout or a failure."""
        ends: NDArray[np.bool_] = self.terminals | self.timeouts
        return ends if self.lost is None else ends | self.lost

    @property
    def taken_obs(self) -> Obs:
        """Observations (n, ...) of the n steps that are not lost."""
        if self.lost is None:
            return self.obs
        return {key: seen[~self.lost] for key, seen in self.obs.items()}


@dataclass(frozen=True)
class EpisodeRecord:
    """Statistics of one finished episode.

    Attributes:
        env_return: sum of the rewards.
        discounted_return: from the first step on: sum of discount^(t - 1) r_t over t = 1 .. length.
        mean_discounted_return: discounted return from a step on, mean over the steps of the episode; NaN where it was
            not recorded.
    """

    env_return: float
    discounted_return: float
    length: int
    success: bool
    info: dict[str, float] = field(default_factory=dict)
    mean_discounted_return: float = math.nan


@dataclass(frozen=True)
class Collected:
    """Steps and episodes from one collection.

    Attributes:
        steps: in order.
        lanes: (N,) numbers of the environments in them.
        episodes: those that ended.
        version: of the weights that acted.
        messages: warnings for the console, such as of an environment that crashed.
        lost_lanes: environments whose process is gone; the episodes that ran in them are void.
    """

    steps: list[Step]
    lanes: NDArray[np.int64]
    episodes: list[EpisodeRecord]
    version: int = 0
    messages: tuple[str, ...] = ()
    lost_lanes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def num_steps(self) -> int:
        """Environment steps, those of failed environments left out."""
        lost = sum(int(step.lost.sum()) for step in self.steps if step.lost is not None)
        return len(self.steps) * len(self.lanes) - lost
