"""A user's package: an environment, and the configuration that trains on it."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Slide(gymnasium.Env):
    """A point that is pushed to the middle; each copy draws its start from ``np_random``."""

    def __init__(self, wild=False):
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Box(-0.2, 0.2, (1,), np.float32)
        self._wild = wild

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        draws = np.random if self._wild else self.np_random
        self._place, self._steps = float(draws.uniform(0.5, 1.0)), 0
        return self._observe(), {}

    def step(self, action):
        self._place = float(np.clip(self._place + action[0], -1.0, 1.0))
        self._steps += 1
        there = abs(self._place) < 0.1
        return self._observe(), -abs(self._place), there, self._steps >= 20, {"success": there}

    def _observe(self):
        return np.array([self._place], dtype=np.float32)


gymnasium.register("Slide-v0", f"{__name__}:Slide")

CONFIG = {
    "algo_name": "sac",
    "experiment": {"epoch_every_n_steps": 40, "rollout": {"horizon": 20}},
    "algo": {"actor": {"layer_dims": [8]}, "critic": {"layer_dims": [8]}},
    "train": {"num_threads": 1, "cuda": False, "online": {"env": "example_package:Slide-v0"}},
    "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
}
