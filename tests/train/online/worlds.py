"""Environments and policies small enough to work out by hand."""

import os
import signal
import time

import numpy as np

from imitate.train.online.learners import ReplayLearner
from imitate.train.online.replay import ReplayBuffer
from imitate.train.online.workers import Blueprint
from tests.tiny import tiny_algo


class Line:
    """A point on a line moves by the action; the reward is where it is. Ends beyond ``length``."""

    name, action_dim = "line", 1
    action_low, action_high = np.array([-2.0]), np.array([2.0])

    def __init__(self, length=np.inf):
        self.length, self.steps, self.closed, self.seeds = length, 0, False, []

    def reset(self, *, seed=None):
        self.seeds.append(seed)
        self.place, self.steps = float(seed % 7), 0
        return self.obs(), {}

    def step(self, action):
        self.steps += 1
        self.place += float(action[0])
        return self.obs(), self.place, self.place > self.length, False, {"success": self.steps >= 3}

    def obs(self):
        return {"place": np.array([self.place])}

    def close(self):
        self.closed = True


class Faulty(Line):
    """Fails at its ``at``-th step in the way ``how``; only where ``flag``, a file, is not there yet."""

    def __init__(self, how, at, flag=None):
        super().__init__()
        self.how, self.at, self.flag, self.taken = how, at, flag, 0

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.taken += 1
        if self.taken == self.at and not (self.flag and os.path.exists(self.flag)):
            if self.flag:
                open(self.flag, "w").close()
            return getattr(self, self.how)(obs, reward, terminated, truncated, info)
        return obs, reward, terminated, truncated, info

    def crash(self, *outcome):
        raise RuntimeError("the simulator is gone")

    def nan_obs(self, obs, *outcome):
        return {"place": np.array([np.nan])}, *outcome

    def nan_reward(self, obs, reward, *outcome):
        return obs, float("nan"), *outcome

    def shape(self, obs, *outcome):
        return {"place": np.zeros(2)}, *outcome

    def kill(self, *outcome):
        os.kill(os.getpid(), signal.SIGKILL)

    def hang(self, *outcome):
        time.sleep(1000)


def make_algo(algo_name="sac", **sections):
    if "rnn" in sections.get("algo", {}):
        sections["train"] = {"seq_length": 4, **sections.get("train", {})}
    return tiny_algo(algo_name, obs={"place": 1}, hidden=(8,), **sections)


def blueprints(algo, *makes, lanes=1, low=Line.action_low, high=Line.action_high, **group):
    """Plans of workers, each with as many environments of one kind."""
    config = algo.global_config
    group = {"seed": 3, "horizon": 5, **group}
    rebuilt = (config.algo_name, config.to_json(), algo.obs_key_shapes, algo.ac_dim)
    return [
        Blueprint(
            make,
            np.arange(number * lanes, (number + 1) * lanes),
            group,
            rebuilt,
            low,
            high,
            False,
            number,
        )
        for number, make in enumerate(makes)
    ]


def learner_of(num_envs=2, algo=None, **settings):
    """A learner with a memory for the steps of so many environments."""
    memory = ReplayBuffer({"place": (1,)}, 1, 10_000, num_envs=num_envs)
    settings = {"batch_size": 2, "update_ratio": 0, "warmup_steps": 0, **settings}
    return ReplayLearner(algo or make_algo(), memory, memory, **settings)
