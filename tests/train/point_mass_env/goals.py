"""A place and a goal; importable by worker processes as ``goals:Goals-v0``."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Goals(gymnasium.Env):
    """The action is a move; -1 until the place is the goal, within 0.1. Episodes have ten steps.

    Args:
        fault: what is wrong with it: ``one``, rewards of one goal at a time; ``first``, many goals have the reward of
            the first; ``effort``, steps cost more than goals say; ``pixels``, goals are images.
    """

    def __init__(self, fault=None, render_mode=None):
        self.fault, self.render_mode = fault, render_mode
        box = spaces.Box(-9.0, 9.0, (2,), np.float64)
        goal = spaces.Box(0, 255, (8, 8, 3), np.uint8) if fault == "pixels" else box
        self.observation_space = spaces.Dict(
            {"observation": box, "achieved_goal": goal, "desired_goal": goal}
        )
        self.action_space = spaces.Box(-0.5, 0.5, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.uniform(-1, 1, (2, 2))
        self.steps = 0
        return self._shown(), {}

    def step(self, action):
        self.place = self.place + action
        self.steps += 1
        reward = float(-(np.linalg.norm(self.place - self.goal) > 0.1).astype(float))
        info = {"is_success": reward == 0.0}
        return self._shown(), reward - (self.fault == "effort"), False, self.steps == 10, info

    def compute_reward(self, achieved_goal, desired_goal, info):
        apart = np.linalg.norm(achieved_goal - desired_goal, axis=-1) > 0.1
        if self.fault == "one":
            return -float(apart.reshape(-1)[0])
        if self.fault == "first":
            return np.full(len(apart), -float(apart[0]))
        return -apart.astype(np.float64)

    def _shown(self):
        if self.fault == "pixels":
            picture = np.zeros((8, 8, 3), np.uint8)
            return {"observation": self.place, "achieved_goal": picture, "desired_goal": picture}
        shown = {"achieved_goal": self.place.copy(), "desired_goal": self.goal.copy()}
        return {"observation": self.place.copy(), **shown}


gymnasium.register("Goals-v0", entry_point=Goals)
