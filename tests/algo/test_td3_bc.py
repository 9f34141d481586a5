"""TD3+BC: the smoothed target, the normalized actor's loss, the delay, and data that imitation fails on."""

import math

import pytest
import torch


@pytest.fixture
def algo(worlds):
    """Targets 2 s + a and s + 3 a, target actor tanh(s); critics s and a, actor tanh(0); no noise."""
    algo = worlds.make_algo("td3_bc", {"actor": {"noise_std": 0.0}})
    worlds.set_critic(algo.nets["critic_target"], (2, 1), (1, 3))
    worlds.set_critic(algo.nets["critic"], (1, 0), (0, 1))
    worlds.set_actor(algo.nets["actor_target"], 1.0)
    worlds.set_actor(algo.nets["actor"], 0.0)
    return algo


def losses(algo, batch):
    return algo.train_on_batch(batch, 1, validate=True)


def critic_loss(target):
    """Critics say (1, 2) and (1, -1)."""
    first, second = target
    return ((1 - first) ** 2 + (2 - second) ** 2 + (1 - first) ** 2 + (-1 - second) ** 2) / 2


def test_critics_learn_from_the_least_target_critic_of_the_target_actor(algo, worlds):
    # next state 4, next action tanh(4): targets 8 + 0.9993 and 4 + 3 * 0.9993, of which the second
    following = 4 + 3 * math.tanh(4.0)
    expected = critic_loss((1 + 0.5 * following, 0.5))
    found = losses(algo, worlds.two_transitions())
    assert float(found["Critic_Loss"]) == pytest.approx(expected, rel=1e-5)


def test_least_and_greatest_can_be_mixed(worlds, algo):
    other = worlds.make_algo(
        "td3_bc", {"actor": {"noise_std": 0.0}, "critic": {"ensemble": {"weight": 0.75}}}
    )
    other.nets.load_state_dict(algo.nets.state_dict())
    action = math.tanh(4.0)
    following = 0.75 * (4 + 3 * action) + 0.25 * (8 + action)
    expected = critic_loss((1 + 0.5 * following, 0.5))
    found = losses(other, worlds.two_transitions())
    assert float(found["Critic_Loss"]) == pytest.approx(expected, rel=1e-5)


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
    # first critic (1, 2) whatever the action: lambda 2.5 / 1.5; distance to the data's 1 and -1 is 1
    found = losses(algo, worlds.two_transitions())
    assert float(found["Actor_Loss"]) == pytest.approx(1.0 - 2.5 / 1.5 * 1.5)
    assert float(found["BC_Distance"]) == pytest.approx(1.0)


def test_the_actors_gradient_by_hand(algo, worlds):
    """With the first critic 5 a - s and pi = tanh(b): lambda = 2.5 / 1.5, d loss / d b = 0 - 5 lambda."""
    worlds.set_critic(algo.nets["critic"], (-1, 5), (0, 0))
    algo.nets["critic_target"].load_state_dict(algo.nets["critic"].state_dict())
    for _ in range(algo.config.actor.update_freq):
        worlds.gradients(algo, worlds.two_transitions())
    # the mean of 2 (pi - a) over both is 0
    assert float(algo.nets["actor"].head.action.bias.grad) == pytest.approx(-5 * 2.5 / 1.5)


def test_which_networks_each_loss_sees(algo, worlds):
    batch = worlds.two_transitions()
    before = losses(algo, batch)

    def changed(name):
        kept = {key: value.clone() for key, value in algo.nets.state_dict().items()}
        head = algo.nets[name].head
        getattr(head, "action", head).bias.data += 0.3
        after = losses(algo, batch)
        algo.nets.load_state_dict(kept)
        names = ("Critic_Loss", "BC_Distance", "Q_Policy")
        return [key for key in names if not torch.equal(before[key], after[key])]

    assert changed("critic_target") == changed("actor_target") == ["Critic_Loss"]
    assert changed("actor") == ["BC_Distance"]
    assert changed("critic") == ["Critic_Loss", "Q_Policy"]


def test_the_actor_and_the_targets_wait_for_every_second_update(worlds):
    algo = worlds.make_algo("td3_bc", hidden=(8,))
    algo.set_train()
    kept, moves = None, []
    for _ in range(4):
        now = {k: v.clone() for k, v in algo.nets.state_dict().items()}
        if kept:
            moves.append({k.split(".")[0] for k in now if not torch.equal(now[k], kept[k])})
        kept = now
        algo.train_on_batch(worlds.two_transitions(), 1)
    assert moves[0] == moves[2] == {"critic"}
    assert moves[1] == {"critic", "actor", "critic_target", "actor_target"}


def test_it_beats_imitation_on_a_bandit_and_joins_halves_of_demos(worlds):
    section = {
        "optim_params": {
            "critic": {"learning_rate": {"initial": 0.01}},
            "actor": {"learning_rate": {"initial": 0.003}},
        },
        "target_tau": 0.05,
        "alpha": 10.0,
    }
    algo = worlds.make_algo("td3_bc", section, hidden=(32,))
    worlds.learn(algo, worlds.bandit(), 400)
    assert worlds.action_in(algo, 1.0) > 0.3
    algo = worlds.make_algo("td3_bc", section, state=3, hidden=(32,))
    worlds.learn(algo, worlds.stitching(), 600)
    assert worlds.action_in(algo, 1, 0, 0) > 0.3
    assert worlds.action_in(algo, 0, 1, 0) > 0.3
    cloned = worlds.make_algo("td3_bc", {**section, "alpha": 0.0}, hidden=(32,))
    worlds.learn(cloned, worlds.bandit(), 300)
    assert worlds.action_in(cloned, 1.0) < -0.2
