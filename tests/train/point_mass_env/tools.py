"""An action of two parts; importable by worker processes as ``tools:Tools-v0``."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Tools(gymnasium.Env):
    """The observation says which of two tools is wanted; tool 0 works at place -1, tool 1 at place 1.

    The wrong tool gives -1, the right one 1 less its distance from where it works. Episodes have five steps.
    """

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float64)
        self.action_space = spaces.Dict(
            {"place": spaces.Box(-2.0, 2.0, (1,), np.float32), "tool": spaces.Discrete(2)}
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._tell(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        right = action["tool"] == self.wanted
        reward = 1.0 - abs(float(action["place"][0]) - (2 * self.wanted - 1)) if right else -1.0
        self.steps += 1
        return self._tell(), reward, False, self.steps == 5, {}

    def _tell(self):
        self.wanted = int(self.np_random.integers(2))
        return np.array([2.0 * self.wanted - 1.0])


gymnasium.register("Tools-v0", entry_point=Tools)
