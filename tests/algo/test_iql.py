"""Implicit Q-learning: each loss by hand, which networks it sees, and data that imitation fails on."""

import math

import pytest
import torch
from torch.distributions import Normal

from tests.algo.conftest import losses, losses_that_see
from tests.tiny import tiny_algo, tiny_batch

WIDE = {"net": {"gaussian": {"state_independent_std": True, "init_std": 0.5}}}


@pytest.fixture
def algo(worlds):
    """V = s; targets 2 s + a and s + 3 a; critics s and a; the actor's mean is tanh(0), its std 0.5."""
    algo = worlds.make_algo("iql", {"actor": WIDE, "vf_quantile": 0.9})
    worlds.set_critic(algo.nets["vf"], (1,))
    worlds.set_critic(algo.nets["critic_target"], (2, 1), (1, 3))
    worlds.set_critic(algo.nets["critic"], (1, 0), (0, 1))
    worlds.set_actor(algo.nets["actor"], 0.0)
    return algo


def test_the_value_learns_an_expectile_of_the_least_target(algo, worlds):
    # least targets 3 and -1, values 1 and 2, errors 2 and -3: (0.9 * 4 + 0.1 * 9) / 2
    assert float(losses(algo, worlds.two_transitions())["Vf_Loss"]) == pytest.approx(2.25)


def test_critics_learn_from_the_next_value(algo, worlds):
    # targets 1 + 0.5 * 4 = 3 and 0.5; critics (1, 2) and (1, -1): (4 + 2.25) / 2 + (4 + 2.25) / 2
    assert float(losses(algo, worlds.two_transitions())["Critic_Loss"]) == pytest.approx(6.25)


def test_a_huber_loss(worlds, algo):
    other = worlds.make_algo("iql", {"actor": WIDE, "critic": {"use_huber": True}})
    other.nets.load_state_dict(algo.nets.state_dict())
    # |error| 2, 1.5 for both: 1.5 + 1, halved, twice
    found = losses(other, worlds.two_transitions())
    assert found["Critic_Loss"] == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("adv", "weights"),
    [
        ({}, [math.exp(2.0), math.exp(-3.0)]),
        ({"beta": 0.5}, [math.exp(4.0), math.exp(-6.0)]),
        ({"beta": 0.1}, [100.0, math.exp(-30.0)]),  # e^20 is clipped
        ({"beta": 0.1, "use_final_clip": False}, [math.exp(20.0), math.exp(-30.0)]),
        ({"clip_adv_value": 1.0}, [math.exp(1.0), math.exp(-3.0)]),
    ],
)
def test_the_actor_is_weighted_by_advantage(worlds, algo, adv, weights):
    other = worlds.make_algo("iql", {"actor": WIDE, "adv": adv})
    other.nets.load_state_dict(algo.nets.state_dict())
    log_prob = float(Normal(0.0, 0.5).log_prob(torch.tensor(1.0)))  # alike for 1 and -1
    expected = -log_prob * sum(weights) / 2
    found = losses(other, worlds.two_transitions())
    assert found["Actor_Loss"] == pytest.approx(expected, rel=1e-5)
    assert found["Advantage"] == pytest.approx(-0.5)


def test_what_is_logged_is_a_mean_over_the_batch(algo, worlds):
    found = losses(algo, worlds.two_transitions())
    assert found["V"] == pytest.approx(1.5)
    assert found["Q"] == pytest.approx(0.75)  # (1 + 2 + 1 - 1) / 4
    # Actions 1 and -1 are two standard deviations from the mean of 0.
    log_prob = -2.0 - math.log(0.5 * math.sqrt(2 * math.pi))
    assert found["Log_Likelihood"] == pytest.approx(log_prob)
    assert found["Advantage_Weight"] == pytest.approx((math.exp(2) + math.exp(-3)) / 2)


def test_which_networks_each_loss_sees(algo, worlds):
    names = ("Vf_Loss", "Critic_Loss", "Actor_Loss")
    for network, seen in (("critic", names[1:2]), ("critic_target", names[::2]), ("vf", names)):
        assert losses_that_see(algo, worlds.two_transitions(), network, names) == list(seen)


def test_the_actor_and_the_critics_see_the_new_value(worlds, algo):
    batch = worlds.two_transitions()
    first = losses(algo, batch)
    algo.set_train()
    info = algo.train_on_batch(batch, 1)
    # The value alone has moved before these losses were computed.
    assert info["Vf_Loss"] == first["Vf_Loss"]
    assert info["Actor_Loss"] != first["Actor_Loss"]
    assert info["Critic_Loss"] != first["Critic_Loss"]


def test_values_here_and_next_belong_to_the_goal_of_their_sample(algo, worlds):
    """V weighs states by 1 and goals by 10; all other critics are 0."""
    for name, members in (("vf", 1), ("critic", 2), ("critic_target", 2)):
        worth = 10.0 if name == "vf" else 0.0
        algo.nets[name].forward = lambda obs, actions, goal, members=members, worth=worth: (
            worth / 10 * obs["s"] + worth * goal["g"]
        ).T.repeat(members, 1)
    batch = worlds.two_transitions(
        next_obs={"s": torch.tensor([[4.0], [8.0]])},
        goal_obs={"g": torch.tensor([[1.0], [3.0]])},
        discounts=torch.tensor([0.5, 0.5]),
    )
    found = losses(algo, batch)
    # Here 11 and 32; next 14 and 38, so that the two critics' targets are 8 and 19.5.
    assert found["Advantage"] == pytest.approx(-(11 + 32) / 2)
    assert found["Critic_Loss"] == pytest.approx(2 * (8**2 + 19.5**2) / 2)


def test_weights_of_samples(algo, worlds):
    batch = worlds.two_transitions(weight=torch.tensor([1.0, 0.0]))
    found = losses(algo, batch)
    assert found["Vf_Loss"] == pytest.approx(3.6)
    assert found["Critic_Loss"] == pytest.approx(8.0)


def test_targets_follow_by_target_tau(worlds, algo):
    old = algo.nets["critic_target"].head.bias.data.add_(1).clone()
    algo.set_train()
    algo.train_on_batch(worlds.two_transitions(), 1)
    expected = old + 0.01 * (algo.nets["critic"].head.bias - old)
    torch.testing.assert_close(algo.nets["critic_target"].head.bias, expected)


def test_images_have_one_encoder_for_both_critics_or_one_each():
    def critics(shared):
        section = {"critic": {"ensemble": {"shared_encoder": shared}}}
        core = {"rgb": {"core_kwargs": {"backbone_class": "ShallowConv"}}}
        words = {"algo": section, "observation": {"encoder": core}}
        algo = tiny_algo("iql", obs={"image": (3, 40, 40)}, action=2, **words)
        info = algo.train_on_batch(algo.process_batch_for_training(tiny_batch(algo, 2)), 1)
        assert all(torch.isfinite(value) for value in info.values())
        return algo.nets["critic"]

    assert len(critics(True).encoders) == 1
    assert len(critics(False).encoders) == 2
