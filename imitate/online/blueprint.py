"""Description from which a worker process builds environments and a copy of the algorithm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.algo.base.algo import Algo
from imitate.algo.base.factory import algo_factory
from imitate.config import load_config
from imitate.envs.env import Env
from imitate.online.collector import LocalCollector
from imitate.online.env_group import EnvGroup
from imitate.online.steps import Array


@dataclass(frozen=True)
class Blueprint:
    """Picklable description of the environments of one worker and of the policy that acts in them.

    It contains no paths and no weights, so it can be sent to another machine: weights come with the requests.

    Attributes:
        make: makes one environment.
        lanes: numbers of its environments' lanes among all lanes of the training; they determine the seeds of episodes.
        group: further arguments of :class:`EnvGroup`.
        algo: the algorithm's name, configuration (JSON), shapes of observations and action dimensions.
        low, high: limits of actions.
        num_choices: number of discrete choices, one-hot in the first values of an action.
        seed: seed of the policy's random numbers.
    """

    make: Callable[[], Env]
    lanes: NDArray[np.int64]
    group: dict[str, Any]
    algo: tuple[str, str, dict[str, tuple[int, ...]], int]
    low: Array
    high: Array
    num_choices: int
    seed: int

    def env_group(self) -> EnvGroup:
        """Make the environments, in this process."""
        return EnvGroup(self.make, self.lanes, **self.group)

    def acting_algo(self) -> Algo:
        """Build a copy of the algorithm that acts with received weights; it reads no file."""
        name, config, shapes, ac_dim = self.algo
        algo = algo_factory(name, load_config(config), shapes, ac_dim, load_pretrained=False)
        algo.ema = None
        return algo

    def collector(self, algo: Algo) -> LocalCollector:
        """Make the environments and return a collector of the algorithm's steps in this process."""
        return LocalCollector(
            self.env_group(), algo, self.low, self.high, num_choices=self.num_choices
        )
