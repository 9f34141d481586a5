"""TD3+BC: the smoothed target, the normalized actor's loss, the delay, and data that imitation fails on."""

import math

import pytest
import torch

from tests.algo.conftest import losses, losses_that_see


@pytest.fixture
def algo(worlds):
    """Targets 2 s + a and s + 3 a, target actor tanh(s); critics s + 1/2 and a + 1/2, actor tanh(0); no noise."""
    algo = worlds.make_algo("td3_bc", {"actor": {"noise_std": 0.0}})
    worlds.set_critic(algo.nets["critic_target"], (2, 1), (1, 3))
    worlds.set_critic(algo.nets["critic"], (1, 0, 0.5), (0, 1, 0.5))
    worlds.set_actor(algo.nets["actor_target"], 1.0)
    worlds.set_actor(algo.nets["actor"], 0.0)
    return algo


def critic_loss(target):
    """Critics estimate (1.5, 2.5) and (1.5, -0.5)."""
    first, second = target
    return (2 * (1.5 - first) ** 2 + (2.5 - second) ** 2 + (-0.5 - second) ** 2) / 2


def test_critics_learn_from_the_least_target_critic_of_the_target_actor(algo, worlds):
    # next state 4, next action tanh(4): targets 8 + 0.9993 and 4 + 3 * 0.9993, of which the second
    following = 4 + 3 * math.tanh(4.0)
    expected = critic_loss((1 + 0.5 * following, 0.5))
    found = losses(algo, worlds.two_transitions())
    assert found["Critic_Loss"] == pytest.approx(expected, rel=1e-5)


def test_least_and_greatest_can_be_mixed(worlds, algo):
    other = worlds.make_algo(
        "td3_bc", {"actor": {"noise_std": 0.0}, "critic": {"ensemble": {"weight": 0.75}}}
    )
    other.nets.load_state_dict(algo.nets.state_dict())
    action = math.tanh(4.0)
    following = 0.75 * (4 + 3 * action) + 0.25 * (8 + action)
    expected = critic_loss((1 + 0.5 * following, 0.5))
    found = losses(other, worlds.two_transitions())
    assert found["Critic_Loss"] == pytest.approx(expected, rel=1e-5)


def test_target_actions_are_smoothed_within_both_bounds(worlds):
    algo = worlds.make_algo("td3_bc", {"actor": {"noise_std": 0.2, "noise_clip": 0.3}})
    worlds.set_actor(algo.nets["actor_target"], 0.0, math.atanh(0.5))
    actions = []  # that the target critics are called with
    algo.nets["critic_target"].register_forward_pre_hook(
        lambda net, inputs: actions.append(inputs[1])
    )
    batch = worlds.only(worlds.two_transitions(), 0, 20000)
    torch.manual_seed(0)
    worlds.losses(algo, batch)
    noise = actions[0] - 0.5
    assert float(noise.max()) == pytest.approx(0.3)
    assert float(noise.min()) == pytest.approx(-0.3)
    inside = noise.abs() < 0.299
    assert float(inside.float().mean()) == pytest.approx(0.8664, abs=0.01)  # within 1.5 std
    worlds.set_actor(algo.nets["actor_target"], 0.0, 9.0)
    worlds.losses(algo, batch)
    assert float(actions[1].max()) == 1.0


def test_the_actors_loss_is_scaled_by_the_first_critics_magnitude(algo, worlds):
    # first critic (1.5, 2.5) whatever the action: lambda 2.5 / 2; the actor's 1/4 is 3/4 and 1/4 from the data
    worlds.set_actor(algo.nets["actor"], 0.0, math.atanh(0.25))
    batch = worlds.two_transitions(actions=torch.tensor([[1.0], [0.5]]))
    found = losses(algo, batch)
    assert found["Actor_Loss"] == pytest.approx(0.3125 - 2.5 / 2 * 2)
    assert found["BC_Distance"] == pytest.approx((0.75**2 + 0.25**2) / 2)


def test_the_actors_gradient_by_hand(algo, worlds):
    """With the first critic 5 a - s and pi = tanh(b): lambda = 2.5 / 1.5, d loss / d b = 0 - 5 lambda."""
    worlds.set_critic(algo.nets["critic"], (-1, 5), (0, 0))
    algo.nets["critic_target"].load_state_dict(algo.nets["critic"].state_dict())
    for _ in range(algo.config.actor.update_freq):
        worlds.gradients(algo, worlds.two_transitions())
    # the mean of 2 (pi - a) over both is 0
    assert float(algo.nets["actor"].head.action.bias.grad) == pytest.approx(-5 * 2.5 / 1.5)


def test_which_networks_each_loss_sees(algo, worlds):
    names = ("Critic_Loss", "BC_Distance", "Q_Policy")
    for network, seen in (
        *(("critic_target", names[:1]), ("actor_target", names[:1])),
        *(("actor", names[1:2]), ("critic", names[::2])),
    ):
        assert losses_that_see(algo, worlds.two_transitions(), network, names) == list(seen)


def test_the_actor_and_the_targets_wait_for_every_second_update(worlds):
    algo = worlds.make_algo("td3_bc", hidden=(8,))
    algo.set_train()
    moves = [worlds.moved_by(algo, worlds.two_transitions()) for _ in range(4)]
    assert moves[0] == moves[2] == {"critic"}
    assert moves[1] == moves[3] == {"critic", "actor", "critic_target", "actor_target"}
