"""ReBRAC: both penalties by hand, and data that imitation fails on."""

import math

import pytest
import torch

from tests.algo.conftest import losses, losses_that_see


@pytest.fixture
def algo(worlds):
    """Two actions; targets of both critics say 10, the target actor tanh(1), the actor tanh(0), critics 1 and 3."""
    section = {
        "actor": {"noise_std": 0.0, "bc_weight": 0.5},
        "critic": {"bc_weight": 2.0, "layer_norm": False},
    }
    algo = worlds.make_algo("rebrac", section, action=2)
    worlds.set_critic(algo.nets["critic_target"], (0, 0, 0, 10), (0, 0, 0, 10))
    worlds.set_critic(algo.nets["critic"], (0, 0, 0, 1), (0, 0, 0, 3))
    worlds.set_actor(algo.nets["actor_target"], 0.0, 1.0)
    worlds.set_actor(algo.nets["actor"], 0.0)
    return algo


@pytest.fixture
def batch(worlds):
    return worlds.two_transitions(
        actions=torch.tensor([[1.0, 0.5], [-1.0, 0.0]]),
        next_actions=torch.tensor([[0.0, 0.2], [0.0, 0.0]]),
    )


def test_the_target_is_penalized_for_leaving_the_next_action(algo, batch):
    made = math.tanh(1.0)
    target = 1 + 0.5 * (10 - 2.0 * (made**2 + (made - 0.2) ** 2))
    # the other transition ends with 0.5
    expected = ((1 - target) ** 2 + (3 - target) ** 2 + (1 - 0.5) ** 2 + (3 - 0.5) ** 2) / 2
    assert losses(algo, batch)["Critic_Loss"] == pytest.approx(expected, rel=1e-5)


def test_the_actor_is_penalized_for_leaving_the_action(algo, batch):
    # squared distances 1.25 and 1, half of their mean; the least critic 1, divided by its magnitude
    assert losses(algo, batch)["Actor_Loss"] == pytest.approx(0.5 * 1.125 - 1.0)
    assert losses(algo, batch)["BC_Distance"] == pytest.approx(1.125)


def test_the_actors_gradient_with_and_without_normalized_values(worlds, batch):
    """Least critic -4 + a_0: d loss / d b_0 of pi = tanh(b) at b = 0."""
    for normalize, expected in ((True, -0.25), (False, -1.0)):
        section = {"actor": {"bc_weight": 0.5, "normalize_q": normalize}}
        section["critic"] = {"layer_norm": False}
        algo = worlds.make_algo("rebrac", section, action=2)
        worlds.set_critic(algo.nets["critic"], (0, 1, 0, -4), (0, 0, 0, 5))
        worlds.set_actor(algo.nets["actor"], 0.0)
        for _ in range(algo.config.actor.update_freq):
            worlds.gradients(algo, batch)
        # the penalty's part, 0.5 * mean of 2 (0 - a_0) over 1 and -1, is 0
        gradient = algo.nets["actor"].head.action.bias.grad
        assert float(gradient[0]) == pytest.approx(expected)
        assert float(gradient[1]) == pytest.approx(-0.25)  # 0.5 * (-2 * 0.5 + 0) / 2


def test_which_networks_each_loss_sees(algo, batch):
    names = ["Critic_Loss", "BC_Distance"]
    for network in ("critic", "critic_target", "actor_target"):
        assert losses_that_see(algo, batch, network, names) == names[:1]
    assert losses_that_see(algo, batch, "actor", names) == names[1:]


def test_critics_are_layer_normed_and_the_actor_is_not(worlds):
    algo = worlds.make_algo("rebrac", hidden=(8, 8))
    assert len(algo.nets["critic"].norms) == 2
    assert not any("norm" in name for name, _ in algo.nets["actor"].named_parameters())
