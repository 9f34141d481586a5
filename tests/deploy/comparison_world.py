"""A robot on which the success of constant policies is known, and such policies as checkpoints."""

import numpy as np
import torch

from imitate.deploy.robot.limits import ActionLimits
from imitate.deploy.robot.robot import Observation, Robot
from imitate.policy.checkpoint import checkpoint_dict, save_checkpoint
from imitate.system import clock
from tests.tiny import tiny_algo


class Coin(Robot):
    """The greater the action, the more beginnings it solves: those whose number in (-1, 1) is below it.

    The number of a beginning is a function of its ``start``, so both policies of a pair face the same one.
    """

    observation_shapes = {"flat": (3,), "camera": (4, 6, 3)}

    def __init__(self, tells=True, puts_up=True):
        self.limits = ActionLimits(low=[-1.0], high=[1.0])
        self.tells, self.puts_up = tells, puts_up
        self.starts, self.sent = [], []
        self._tick = 0

    def reset_to(self, start):
        self.starts.append(start)
        self.sent = []
        self._difficulty = np.random.default_rng(start).uniform(-1, 1)
        return self.observe() if self.puts_up else None

    def observe(self):
        self._tick += 1
        camera = np.full((4, 6, 3), self._tick % 251, np.uint8)
        return Observation({"flat": np.zeros(3, np.float32), "camera": camera}, clock.now())

    def send(self, action):
        self.sent.append(float(action[0]))

    def stop(self):
        pass

    def success(self):
        if not self.tells:
            return None
        return len(self.sent) >= 3 and self.sent[-1] > self._difficulty


def constant_checkpoint(path, action, control_freq=100.0):
    """A bc policy that gives one number whatever it sees."""
    algo = tiny_algo("bc", obs={"flat": 3})
    ckpt = checkpoint_dict(
        algo,
        env_metadata={"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}},
        shape_metadata={"control_freq": control_freq, "action_low": [-1.0], "action_high": [1.0]},
    )
    nets = ckpt["model"]["nets"]
    for name in nets:
        nets[name] = torch.zeros_like(nets[name])
    last = [name for name in nets if name.endswith("bias")][-1]
    nets[last][:] = float(np.arctanh(action))
    ckpt["model"].pop("ema", None)
    save_checkpoint(ckpt, path)
    return path
