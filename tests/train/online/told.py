"""A world that a person solves at once: the observation names the right action. With an algorithm that learns in it."""

import numpy as np
import torch

from imitate import load_config
from imitate.train.online.collector import LocalCollector
from imitate.train.online.env_group import EnvGroup
from imitate.train.online.replay import ReplayBuffer
from tests.tiny import tiny_algo

SOFT = {"temperature": {"initial": 0.02}}


class Told:
    """The observation says which action is right: it is the sign, or the choice. Episodes of ten steps."""

    name = "told"

    def __init__(self, num_choices=0):
        self.num_choices = num_choices
        self.action_dim = num_choices or 1
        self.action_low = np.zeros(num_choices) if num_choices else -np.ones(1)
        self.action_high = np.ones(self.action_dim)

    def reset(self, *, seed=None):
        self.rng = np.random.default_rng(seed)
        return self.tell(), {}

    def tell(self):
        self.right = int(self.rng.integers(2))
        return {"told": np.array([2.0 * self.right - 1.0])}

    def step(self, action):
        if self.num_choices:
            reward = float(np.argmax(action) == self.right)
        else:
            reward = 1.0 - abs(float(action[0]) - (self.right - 0.5))
        return self.tell(), reward, False, False, {}

    def close(self):
        pass


def told_algo(name, section=None, choices=0, rate=3e-3):
    """An algorithm with one learning rate for all of its networks, whose first weights are wrong somewhere."""
    nets = vars(load_config({"algo_name": name}).algo.optim_params)
    rates = {net: {"learning_rate": {"initial": rate}} for net in nets}
    section = {**(section or {}), "optim_params": rates, "discount": 0.5}
    words = {"obs": {"told": 1}, "action": choices or 1, "hidden": (32,), "algo": section}
    for seed in range(20):
        algo = tiny_algo(name, experiment={"epoch_every_n_steps": 400}, seed=seed, **words)
        if worst_error(algo) > 0.4:
            return algo
    raise AssertionError("right with any weights")


def told_collector(algo, make=Told, choices=0, envs=1):
    group = EnvGroup(lambda: make(choices), np.arange(envs), seed=0, horizon=10)
    low, high = group.envs[0].action_low, group.envs[0].action_high
    return LocalCollector(group, algo, low, high, num_choices=choices)


def told_memory(algo, choices=0, envs=1):
    transitions = algo.global_config.algo.data_needs(algo.global_config).transitions
    return ReplayBuffer({"told": (1,)}, choices or 1, 5000, num_envs=envs, transitions=transitions)


def worst_error(algo):
    """Error of the policy in both cases: the distance to the right numbers, -0.5 and 0.5, or 1 for a wrong choice."""
    algo.set_eval()
    told = {"told": torch.tensor([[-1.0], [1.0]])}
    with torch.no_grad():
        action = algo.act(told, algo.initial_state(2)).action
    algo.set_train()
    if action.shape[1] > 1:
        return float((action.argmax(-1) != torch.tensor([0, 1])).any())
    return float((action[:, 0] - torch.tensor([-0.5, 0.5])).abs().max())


def learns(algo, collector, learner, *, rounds, within, steps=1, random_rounds=0):
    """Collect and learn until the policy is right at two looks in a row; false if it is not after so many rounds.

    It looks 16 times.
    """
    right = 0
    for number in range(rounds):
        collector.progress = number / rounds
        learner.take(collector.collect(steps, random=number < random_rounds))
        for _ in learner.updates_due(1):
            pass
        if (number + 1) % (rounds // 16) == 0:
            right = right + 1 if worst_error(algo) < within else 0
            if right == 2:
                return True
    return False
