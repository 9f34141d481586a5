"""MDQ: values and draws of bins by hand, targets, and a task in which numbers have to fit each other."""

import math

import pytest
import torch

from imitate.errors import ConfigError
from tests.tiny import tiny_algo, tiny_config

from .conftest import set_critic

LOG_2 = math.log(2.0)


def make(action=1, hidden=(), **section):
    section = {"actor": {"bins": 2, "noise_std": 0.0}, "discount": 0.5} | section
    return tiny_algo("mdq", obs={"s": 1}, action=action, hidden=hidden, algo=section)


def set_bins(algo, *values):
    """Let the values of a number's two bins be these, or these times the number before it."""
    for number, bins in zip(algo.bins_actor.numbers, values, strict=True):
        linear = number[-1]
        torch.nn.init.zeros_(linear.weight)
        torch.nn.init.zeros_(linear.bias)
        if linear.weight.shape[1] > 1:
            linear.weight.data[:, -1] = torch.tensor(bins)
        else:
            linear.bias.data = torch.tensor(bins)


def test_structured_values_by_hand():
    """q_0 = (1, 2); q_1 = (3, 5) a_0; alpha 0.5. The bins are [-1, 0] and [0, 1] with centers -0.5 and 0.5."""
    algo = make(action=2)
    set_bins(algo, (1.0, 2.0), (3.0, 5.0))
    alpha, obs = torch.tensor(0.5), {"s": torch.zeros(2, 1)}
    found = algo.bins_actor.values(obs, None, torch.tensor([[0.5, -0.2], [-0.5, 1.0]]), alpha)
    first = 2 + 1.5 - 0.5 * math.log((math.exp(3) + math.exp(5)) / 2)  # q_1 of 0.5: 1.5 and 2.5
    second = 1 - 2.5 - 0.5 * math.log((math.exp(-3) + math.exp(-5)) / 2)
    expected = [first + 0.5 * LOG_2, second + 0.5 * LOG_2]
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_actions_are_drawn_by_their_values():
    algo = make(action=2)
    set_bins(algo, (0.0, LOG_2), (3.0, -3.0))
    torch.manual_seed(0)
    obs = {"s": torch.zeros(4000, 1)}
    actions, log_prob = algo.bins_actor.draw(obs, None, torch.tensor(1.0))
    assert set(actions.unique().tolist()) == {-0.5, 0.5}
    high = actions[:, 0] > 0
    assert high.float().mean().item() == pytest.approx(2 / 3, abs=0.03)  # twice as likely
    opposite = actions[:, 0] * actions[:, 1] < 0  # values 1.5 and -1.5: 3 nats
    likely = 1 / (1 + math.exp(-3))
    assert opposite.float().mean().item() == pytest.approx(likely, abs=0.02)
    wanted = torch.where(high, 2 / 3, 1 / 3) * torch.where(opposite, likely, 1 - likely)
    torch.testing.assert_close(log_prob.exp(), wanted)
    best, _ = algo.bins_actor.draw(obs, None, torch.tensor(1.0), greedy=True)
    assert best.unique(dim=0).tolist() == [[0.5, -0.5]]


def batch(**more):
    return {
        "obs": {"s": torch.tensor([[1.0], [2.0]])},
        "next_obs": {"s": torch.tensor([[4.0], [9.0]])},
        "goal_obs": None,
        "actions": torch.tensor([[1.0], [-1.0]]),
        "rewards": torch.tensor([1.0, 0.5]),
        "discounts": torch.tensor([0.5, 0.0]),
        "weight": None,
        **more,
    }


def test_targets_and_losses_by_hand():
    """The policy takes 0.5 nearly always; Q' is the lower of s + a and s + 3 a, Q of s and 2 s; alpha is 1."""
    algo = make()
    set_bins(algo, (-20.0, 20.0))
    set_critic(algo.nets["critic_target"], (1, 1), (1, 3))
    set_critic(algo.nets["critic"], (1, 0), (2, 0))
    assert algo.td_targets(batch()).tolist() == pytest.approx([1 + 0.5 * (4.5 - LOG_2), 0.5])
    loss, info = algo.critic_loss(batch())
    target = 1 + 0.5 * (4.5 - LOG_2)
    errors = [(1 - target) ** 2 + (2 - target) ** 2, 1.5**2 + 3.5**2]
    assert loss.item() == pytest.approx(sum(errors) / 2, rel=1e-5)
    loss, info = algo.distillation(batch())
    value = 20 + LOG_2
    assert loss.item() == pytest.approx(((value - 1.5) ** 2 + (value - 2.5) ** 2) / 2, rel=1e-5)
    assert info["Entropy"].item() == pytest.approx(0.0, abs=1e-6)
    seen = {**batch(), "actions": torch.tensor([[0.5], [1.0]])}
    assert algo.train_on_batch(seen, 1, validate=True)["Action_Error"].item() == 0.25
    set_bins(algo, (3.0, 3.0))
    assert algo.distillation(batch())[1]["Entropy"].item() == pytest.approx(LOG_2)
    assert algo.entropy.target.item() == pytest.approx(-1.0)  # -1 + log(2 / 2)
    assert make(actor={"bins": 20}).entropy.target.item() == pytest.approx(-1 + math.log(10))


def test_numbers_that_have_to_fit_each_other_are_learned():
    """The reward is -4 |a_0 + a_1|: any a_0 will do, but a_1 has to be its opposite."""
    rate = {name: {"learning_rate": {"initial": 0.01}} for name in ("critic", "actor")}
    still = {"initial": 0.3, "tuned": False}
    bins = {"bins": 7, "noise_std": 0.01}
    algo = make(2, (32,), optim_params=rate, temperature=still, actor=bins, target_tau=0.1)
    algo.set_train()
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    for _ in range(200):
        actions = torch.rand(64, 2, generator=generator) * 2 - 1
        states = {"obs": {"s": torch.ones(64, 1)}, "next_obs": {"s": torch.ones(64, 1)}}
        ends = {"rewards": -4 * actions.sum(1).abs(), "discounts": torch.zeros(64)}
        info = algo.train_on_batch({**batch(), **states, **ends, "actions": actions}, 1)
    assert all(value.isfinite() for value in info.values())
    algo.set_eval()
    tried = algo.act({"s": torch.ones(300, 1)}, algo.initial_state(300), explore=True).action
    assert tried.sum(1).abs().mean() < 0.3  # 0.65 of random actions
    assert tried[:, 0].std() > 0.3


def test_a_network_without_bins_is_refused():
    with pytest.raises(ConfigError, match="cannot predict the values of bins"):
        tiny_config("mdq", "algo.networks.actor=mine:Net", obs={"s": 1})
