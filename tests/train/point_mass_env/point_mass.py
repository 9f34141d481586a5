"""A point that is pushed to a goal in the plane; importable by worker processes as ``point_mass:PointMass-v0``."""

import os
import sys
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class PointMass(gymnasium.Env):
    """Position += 0.1 * action; success within 0.05 of the goal, reward 1 there.

    Args:
        action_dim: size of an action; only the first two move the point.
        die_at: reset seeds at which the process ends without a word.
        die_once_file: with ``die_at``: die only while this file does not exist, and make it.
        raise_at: reset seeds at which reset raises.
        impossible_at: reset seeds whose goal is out of reach.
        step_s: seconds a step takes.
        out_of_reach: the goal is, at every seed.
        mirrored: the point must reach minus the goal.
        nan_reward: every reward is NaN.
        nan_obs_at: reset seeds from whose third observation on ``pos`` is NaN, and each step is a success.
        exit_at: reset seeds at which ``sys.exit(5)`` is called.
        silent: ``info`` says nothing of success.
        hang_in: ``make``, ``reset``, ``step`` or ``render``, which then never returns.
        hang_at: the episodes, by their reset seeds, in which it hangs; None: all.
        hang_once_file: hang only while this file does not exist, and make it.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(
        self,
        render_mode=None,
        action_dim=2,
        die_at=(),
        die_once_file=None,
        raise_at=(),
        impossible_at=(),
        step_s=0.0,
        out_of_reach=False,
        mirrored=False,
        nan_reward=False,
        exit_at=(),
        nan_obs_at=(),
        silent=False,
        hang_in=None,
        hang_at=None,
        hang_once_file=None,
    ):
        self.render_mode = render_mode
        self.die_at, self.die_once_file = set(die_at), die_once_file
        self.raise_at, self.impossible_at, self.step_s = set(raise_at), set(impossible_at), step_s
        self.out_of_reach, self.sign = out_of_reach, -1.0 if mirrored else 1.0
        self.nan_reward, self.exit_at, self.silent = nan_reward, set(exit_at), silent
        self.nan_obs_at = set(nan_obs_at)
        self.hang_in, self.hang_at, self.hang_once_file = hang_in, hang_at, hang_once_file
        self.seed = None
        self._may_hang("make")
        box = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.observation_space = spaces.Dict({"goal": box, "pos": box})
        self.action_space = spaces.Box(-1.0, 1.0, (action_dim,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed = seed
        self._may_hang("reset")
        if seed in self.exit_at:
            sys.exit(5)
        if seed in self.die_at and not (self.die_once_file and os.path.exists(self.die_once_file)):
            if self.die_once_file:
                open(self.die_once_file, "w").close()
            os._exit(7)
        if seed in self.raise_at:
            raise RuntimeError("the simulator is unstable")
        self.steps = 0
        self.pos, self.goal = self.np_random.uniform(-0.5, 0.5, (2, 2))
        if self.out_of_reach or seed in self.impossible_at:
            self.goal = np.array([1e6, 1e6])
        return self._obs(), {}

    def step(self, action):
        time.sleep(self.step_s)
        self._may_hang("step")
        self.pos = self.pos + 0.1 * np.clip(np.asarray(action)[:2], -1, 1)
        if self.nan_obs_at:
            self.steps += 1
            if self.seed in self.nan_obs_at and self.steps == 2:
                self.pos = np.full(2, np.nan)
        broken = bool(np.isnan(self.pos).any())
        success = broken or bool(np.linalg.norm(self.pos - self.sign * self.goal) < 0.05)
        reward = float("nan") if self.nan_reward else float(success)
        return self._obs(), reward, False, False, {} if self.silent else {"success": success}

    def render(self):
        self._may_hang("render")
        frame = np.zeros((64, 64, 3), np.uint8)
        x, y = np.clip((self.pos + 1) * 32, 0, 63).astype(int)
        frame[y, x] = 255
        return frame

    def _may_hang(self, where):
        if where != self.hang_in or not (self.hang_at is None or self.seed in self.hang_at):
            return
        if self.hang_once_file:
            if os.path.exists(self.hang_once_file):
                return
            open(self.hang_once_file, "w").close()
        time.sleep(1000)

    def _obs(self):
        return {"goal": self.goal.copy(), "pos": self.pos.copy()}


gymnasium.register("PointMass-v0", entry_point=PointMass)
gymnasium.register("PointMassFar-v0", entry_point=PointMass, kwargs={"out_of_reach": True})
