"""A2C: its loss by hand, and a bandit."""

import math

import pytest
import torch

from imitate import algo_factory, load_config


def make(hidden=(), **section):
    config = load_config(
        {
            "algo_name": "a2c",
            "experiment": {"epoch_every_n_steps": 10},
            "algo": {"net": {"layer_dims": list(hidden)}, **section},
            "observation": {"modalities": {"obs": {"low_dim": ["s"]}}},
        }
    )
    torch.manual_seed(0)
    return algo_factory("a2c", config, {"s": (1,)}, 1)


def test_the_loss_by_hand():
    algo = make(value_weight=0.5, entropy_weight=0.1)
    net = algo.nets["policy"]
    for layer, weight in ((net.head.mean, 0.0), (net.value_head, 3.0)):
        torch.nn.init.constant_(layer.weight, weight)
        torch.nn.init.zeros_(layer.bias)
    batch = {
        "obs": {"s": torch.tensor([[1.0], [2.0]])},
        "actions": torch.tensor([[0.0], [1.0]]),
        "log_prob": torch.zeros(2),
        "advantages": torch.tensor([1.0, 2.0]),
        "values": torch.zeros(2),
        "returns": torch.ones(2),
    }
    info = algo.train_on_batch(batch, 1, validate=True)
    # Standard deviation 1 around 0: log-densities of 0 and 1.
    density = [-0.5 * math.log(2 * math.pi), -0.5 * math.log(2 * math.pi) - 0.5]
    policy = -(density[0] + 2 * density[1]) / 2
    entropy = 0.5 * math.log(2 * math.pi * math.e)
    assert info["Policy_Loss"].item() == pytest.approx(policy)
    assert info["Value_Loss"].item() == pytest.approx((4 + 25) / 2)
    assert info["Loss"].item() == pytest.approx(policy + 0.5 * 14.5 - 0.1 * entropy)


def test_it_learns_the_better_action():
    """Two kinds of actions in one state; those above 0 have advantage 1, the others -1."""
    rate = {"policy": {"learning_rate": {"initial": 0.01}}}
    algo = make(hidden=(16,), optim_params=rate)
    torch.manual_seed(0)
    algo.set_train()
    obs = {"s": torch.ones(64, 1)}
    for _ in range(100):
        step = algo.act(obs, algo.initial_state(64), explore=True)
        action = step.extras["policy_action"]
        batch = {
            "obs": obs,
            "actions": action,
            "log_prob": step.extras["log_prob"].detach(),
            "advantages": action[:, 0].sign(),
            "values": torch.zeros(64),
            "returns": torch.zeros(64),
        }
        algo.train_on_batch(batch, 1)
    algo.set_eval()
    assert algo.get_action({"s": torch.ones(1, 1)}).item() > 0.5
