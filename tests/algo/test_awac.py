"""AWAC: the advantage over the actor's own actions, weights with their ceiling, and data that imitation fails on."""

import math

import pytest
import torch
from torch.distributions import Normal

from tests.algo.conftest import losses, losses_that_see

# A standard deviation that is all but none: samples are the mean.
NARROW = {"net": {"gaussian": {"fixed_std": True, "init_std": 1e-6, "min_std": 1e-6}}}
WIDE = {"net": {"gaussian": {"fixed_std": True, "init_std": 0.5}}}


def algo_with(worlds, actor, **section):
    """Targets 2 s + a and s + 3 a, critics s and a - 1, the actor's mean tanh(0)."""
    algo = worlds.make_algo("awac", {"actor": actor, **section})
    worlds.set_critic(algo.nets["critic_target"], (2, 1), (1, 3))
    worlds.set_critic(algo.nets["critic"], (1, 0), (0, 1, -1))
    worlds.set_actor(algo.nets["actor"], 0.0)
    return algo


def advantages(worlds, algo):
    """Advantages of two transitions."""
    two = worlds.two_transitions()
    return [worlds.losses(algo, worlds.only(two, row))["Advantage"] for row in (0, 1)]


def test_critics_learn_from_the_actors_next_action(worlds):
    algo = algo_with(worlds, NARROW)
    worlds.set_actor(algo.nets["actor"], 0.1)
    target = 1 + 0.5 * min(8 + math.tanh(0.4), 4 + 3 * math.tanh(0.4))
    # critics (1, 2) and (0, -2)
    expected = ((1 - target) ** 2 + (2 - 0.5) ** 2 + target**2 + (-2 - 0.5) ** 2) / 2
    found = losses(algo, worlds.two_transitions())
    assert found["Critic_Loss"] == pytest.approx(expected, rel=1e-4)


def test_the_advantage_is_over_the_actors_own_actions(worlds):
    algo = algo_with(worlds, NARROW)
    # least critics: of the data min(1, 0) and min(2, -2); of the actor's 0: min(1, -1) and min(2, -1)
    assert advantages(worlds, algo) == pytest.approx([1.0, -1.0], abs=1e-4)


def test_the_value_is_a_mean_over_samples(worlds):
    algo = algo_with(worlds, WIDE, adv={"num_action_samples": 4000})
    worlds.set_critic(algo.nets["critic"], (0, 1), (0, 1))
    torch.manual_seed(0)
    # samples are clipped to [-1, 1], symmetric around 0
    assert advantages(worlds, algo) == pytest.approx([1.0, -1.0], abs=0.03)


@pytest.mark.parametrize(
    ("adv", "weights"),
    [
        ({}, (math.e, 1 / math.e)),
        ({"beta": 0.5}, (math.exp(2), math.exp(-2))),
        ({"max_weight": 2.0}, (2.0, 1 / math.e)),
    ],
)
def test_the_actor_is_weighted_by_advantage(worlds, adv, weights, monkeypatch):
    algo = algo_with(worlds, WIDE, adv=adv)
    monkeypatch.setattr(algo, "_advantage", lambda batch: torch.tensor([1.0, -1.0]))
    expected = -float(Normal(0.0, 0.5).log_prob(torch.tensor(1.0))) * sum(weights) / 2
    found = losses(algo, worlds.two_transitions())
    assert found["Actor_Loss"] == pytest.approx(expected, rel=1e-5)


def test_which_networks_each_loss_sees(worlds):
    algo, names = algo_with(worlds, NARROW), ["Critic_Loss", "Advantage"]
    batch = worlds.only(worlds.two_transitions(), 0)
    assert losses_that_see(algo, batch, "critic_target", names) == names[:1]
    assert losses_that_see(algo, batch, "critic", names) == names
