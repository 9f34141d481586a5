"""PopArt: statistics and weights by hand; ppo and a2c learn large returns with it."""

import numpy as np
import pytest
import torch

from imitate.errors import ConfigError
from imitate.models.moments import PopArt
from tests.tiny import tiny_algo, tiny_config


def test_statistics_and_weights_by_hand_and_values_stay_the_same():
    head = PopArt(1, 2, rate=0.5)
    head.weight.data, head.bias.data = torch.tensor([[2.0], [1.0]]), torch.tensor([1.0, 0.0])
    states = torch.tensor([[3.0], [-1.0]])
    before = head(states)
    assert before.tolist() == [[7.0, 3.0], [-1.0, -1.0]]
    # The first statistics replace those of the start: mean 10, variance 104 - 100.
    head.observe(torch.tensor([10.0, 0.0]), torch.tensor([104.0, 1.0]))
    assert head.mean.tolist() == [10.0, 0.0] and head.std.tolist() == [2.0, 1.0]
    assert head.weight.tolist() == [[1.0], [1.0]] and head.bias.tolist() == [-4.5, 0.0]
    torch.testing.assert_close(head(states), before, rtol=0, atol=1e-6)
    # The next ones count half: mean 15, mean square (104 + 416) / 2.
    head.observe(torch.tensor([20.0, 0.0]), torch.tensor([416.0, 1.0]))
    assert head.mean[0] == 15.0 and head.std[0].item() == pytest.approx(35**0.5)
    torch.testing.assert_close(head(states), before, rtol=0, atol=1e-5)


def test_equal_returns_have_the_smallest_deviation():
    head = PopArt(1, 2, rate=0.1)
    head.observe(torch.tensor([5.0, 0.0]), torch.tensor([25.0, 0.0]))
    # a tenth of the root mean square, and the smallest at all
    assert head.std.tolist() == pytest.approx([0.5, 1e-4])
    assert head(torch.zeros(1, 1)).isfinite().all()


def test_a_failure_after_many_equal_returns_is_an_error_of_hundreds_at_most():
    head = PopArt(1, 1, rate=0.1)
    for _ in range(200):
        head.observe(torch.tensor([1e4]), torch.tensor([1e8]))
    assert (1e4 / head.std.item()) ** 2 == pytest.approx(100, rel=0.02)


def rollout(size=64):
    """Steps that end at once, whose returns are 300 + 100 s."""
    states = np.random.default_rng(0).normal(size=(size, 1, 1)).astype(np.float32)
    return {
        "obs": {"s": states},
        "rewards": 300 + 100 * states[..., 0],
        "terminals": np.ones((size, 1), bool),
        "timeouts": np.zeros((size, 1), bool),
        "mask": np.ones((size, 1), bool),
        "end_rows": np.array([size - 1]),
        "end_obs": {"s": states[-1]},
        "policy_action": np.zeros((size, 1, 1), np.float32),
        "log_prob": np.zeros((size, 1), np.float32),
    }


def learned(name, popart, rollouts=150):
    rate = "algo.optim_params.policy.learning_rate.initial=0.03"
    algo = tiny_algo(name, rate, obs={"s": 1}, algo={"popart": popart})
    for _ in range(rollouts):
        batch = algo.prepare_rollout(rollout())
        info = algo.train_on_batch(batch, 1)
    values = algo.net.values_of(batch["obs"]["s"], batch["obs"])
    return algo, info, (values - batch["returns"]).abs().mean().item()


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_large_returns_are_learned(name):
    algo, info, error = learned(name, 0.1)
    assert error < 20 and info["Value_Loss"] < 0.1
    assert 270 < algo.net.value_head.mean.item() < 330
    _, _, error = learned(name, None)
    assert error > 100


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_the_loss_is_in_units_of_the_deviation(name):
    algo = tiny_algo(name, obs={"s": 1}, algo={"popart": 0.1})
    head = algo.net.value_head
    for weight in (head.weight, head.bias):
        torch.nn.init.zeros_(weight)
    head.std.fill_(10.0)
    two = torch.zeros(2)
    batch = {"obs": {"s": two[:, None]}, "actions": two[:, None], "log_prob": two}
    batch |= {"advantages": two, "values": two, "returns": torch.tensor([20.0, 40.0])}
    # (400 + 1600) / 2 in units of 10.
    assert algo.train_on_batch(batch, 1, validate=True)["Value_Loss"].item() == pytest.approx(10.0)


def test_an_algorithm_with_another_value_network_refuses_it():
    with pytest.raises(ConfigError, match=r"algo\.popart is 0\.1"):
        tiny_config("reinflow", "algo.popart=0.1", train={"online": {"enabled": True}})
