"""Every algorithm learns a world that a person solves at once: do what you are told."""

import numpy as np
import pytest
import torch

from imitate import algo_factory, load_config
from imitate.data.batches.rewards import RewardTransform
from imitate.online.collector import LocalCollector
from imitate.online.env_group import EnvGroup
from imitate.online.learners import ReplayLearner, RolloutLearner
from imitate.online.normalization import RewardScaler
from imitate.online.replay import ReplayBuffer


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


def learn(name, section, *, choices=0, envs=1, steps=1, rounds=400, batch_size=32, rate=3e-3):
    """Mean reward of the policy that was learned, of at most 1."""
    optimizers = {
        "ppo": ["policy"],
        "a2c": ["policy"],
        "dqn": ["critic"],
    }.get(name, ["actor", "critic"])
    rates = {net: {"learning_rate": {"initial": rate}} for net in optimizers}
    config = load_config(
        {
            "algo_name": name,
            "experiment": {"epoch_every_n_steps": rounds},
            "train": {"num_epochs": 1, "batch_size": batch_size},
            "algo": {**section, "optim_params": rates, "discount": 0.5},
            "observation": {"modalities": {"obs": {"low_dim": ["told"]}}},
        }
    )
    torch.manual_seed(0)
    algo = algo_factory(name, config, {"told": (1,)}, choices or 1)
    group = EnvGroup(lambda: Told(choices), np.arange(envs), seed=0, horizon=10)
    low, high = group.envs[0].action_low, group.envs[0].action_high
    collector = LocalCollector(group, algo, low, high, num_choices=choices)
    if name in ("ppo", "a2c"):
        learner = RolloutLearner(
            algo,
            rollout_steps=steps,
            batch_size=batch_size,
            reward_scaler=RewardScaler(RewardTransform(), envs),
        )
    else:
        memory = ReplayBuffer(
            {"told": (1,)},
            choices or 1,
            5000,
            num_envs=envs,
            transitions=config.algo.data_needs(config).transitions,
        )
        learner = ReplayLearner(
            algo, memory, memory, batch_size=batch_size, update_ratio=1, warmup_steps=50
        )
    algo.set_train()
    for number in range(rounds):
        collector.progress = number / rounds
        learner.take(collector.collect(steps, random=number < 50 and steps == 1))
        for _ in learner.updates_due(1):
            pass
    algo.set_eval()
    told = {"told": torch.tensor([[-1.0], [1.0]])}
    with torch.no_grad():
        action = algo.act(told, algo.initial_state(2)).action
    if choices:
        return float((action.argmax(-1) == torch.tensor([0, 1])).float().mean())
    return float(1.0 - (action[:, 0] - torch.tensor([-0.5, 0.5])).abs().mean())


SMALL = {"actor": {"layer_dims": [32]}, "critic": {"layer_dims": [32]}}


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg"])
def test_replay_of_continuous_actions(name):
    entropy = {"temperature": {"initial": 0.02}} if name == "sac" else {}
    assert learn(name, {**SMALL, **entropy}) > 0.8


@pytest.mark.parametrize("num_quantiles", [1, 8])
def test_replay_of_choices(num_quantiles):
    critic = {"layer_dims": [32], "num_quantiles": num_quantiles}
    section = {"critic": critic, "target_update_freq": 20, "epsilon": {"part": 0.5}}
    assert learn("dqn", section, choices=2) == 1.0


@pytest.mark.parametrize("name", ["ppo", "a2c"])
@pytest.mark.parametrize("choices", [0, 2])
def test_rollouts(name, choices):
    rounds = 25 if name == "ppo" else 150
    reward = learn(
        name,
        {"net": {"layer_dims": [32]}},
        choices=choices,
        envs=4,
        steps=16,
        rounds=rounds,
        rate=1e-2,
    )
    assert reward > 0.8
