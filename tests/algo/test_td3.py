"""TD3 and DDPG: losses, delayed updates and exploration noise, by hand."""

import math

import pytest
import torch


@pytest.fixture
def td3(worlds):
    def make(**section):
        return worlds.make_algo("td3", section)

    return make


def test_the_target_uses_both_target_networks_and_smooths_within_bounds(td3, worlds):
    algo = td3(actor={"noise_std": 100.0, "noise_clip": 0.5})
    worlds.set_actor(algo.nets["actor_target"], slope=0.0)
    worlds.set_actor(algo.actor, slope=100.0)
    # Critics of a and -a: the least is -|a|, and noise so wide is clipped to 0.5 or -0.5.
    worlds.set_critic(algo.nets["critic_target"], (0, 1), (0, -1))
    info = worlds.losses(algo, worlds.only(worlds.two_transitions(), 0, 50))
    assert info["Q_Targets"] == pytest.approx(1.0 - 0.5 * 0.5)


def test_losses_by_hand(td3, worlds):
    algo = td3(actor={"noise_std": 0.0})
    worlds.set_actor(algo.nets["actor_target"], slope=0.1)
    worlds.set_actor(algo.actor, slope=0.0, offset=0.2)
    worlds.set_critic(algo.nets["critic"], (1, 1), (0, 0))
    worlds.set_critic(algo.nets["critic_target"], (1, 2), (2, 0))
    info = worlds.losses(algo, worlds.two_transitions())
    first = 1.0 + 0.5 * (4 + 2 * math.tanh(0.4))
    errors = [(first - 2) ** 2 + first**2, (0.5 - 1) ** 2 + 0.5**2]
    assert info["Critic_Loss"] == pytest.approx(sum(errors) / 2)
    assert info["Actor_Loss"] == pytest.approx(-(1.5 + math.tanh(0.2)))


def test_the_actor_follows_every_second_update(td3, worlds):
    algo = td3(actor={"update_freq": 2})
    before = algo.actor.head.action.weight.clone()
    assert "Actor_Loss" not in algo.train_on_batch(worlds.two_transitions(), 1)
    assert torch.equal(before, algo.actor.head.action.weight)
    assert "Actor_Loss" in algo.train_on_batch(worlds.two_transitions(), 1)
    assert not torch.equal(before, algo.actor.head.action.weight)


def test_rollouts_are_noisy_within_bounds_and_evaluation_is_not(td3, worlds):
    algo = td3(exploration={"std": 0.5})
    worlds.set_actor(algo.actor, slope=0.0, offset=0.5)
    obs = {"s": torch.ones(4000, 1)}
    state = algo.initial_state(4000)
    plain = algo.act(obs, state).action
    assert (plain == math.tanh(0.5)).all() or torch.allclose(plain, torch.tensor(0.5).tanh())
    noisy = algo.act(obs, state, explore=True).action
    inside = noisy[noisy.abs() < 1]
    assert noisy.abs().max() <= 1 and (noisy == 1).float().mean() > 0.05
    assert inside.std() > 0.3


@pytest.mark.parametrize(
    ("progress", "expected"),
    [(0.0, 0.4), (0.49, 0.4), (0.5, 0.4), (0.6, 0.3), (0.7, 0.2), (1, 0.2)],
)
def test_noise_is_annealed_with_training_progress(worlds, progress, expected):
    schedule = {"schedule": [[0.5, 0.4], [0.7, 0.2]]}
    algo = worlds.make_algo("ddpg", {"exploration": {"std": schedule}})
    algo.set_progress(progress)
    state = algo.initial_state(20_000)
    drawn = algo.act({"s": torch.zeros(20_000, 1)}, state, explore=True).state["policy"]["noise"]
    assert drawn.std().item() == pytest.approx(expected, rel=0.03)


def test_losses_by_hand_in_ddpg(worlds):
    algo = worlds.make_algo("ddpg")
    worlds.set_actor(algo.nets["actor_target"], slope=0.1)
    worlds.set_actor(algo.actor, slope=0.0, offset=0.2)
    worlds.set_critic(algo.nets["critic"], (1, 1))
    worlds.set_critic(algo.nets["critic_target"], (1, 2))
    info = worlds.losses(algo, worlds.two_transitions())
    first = 1.0 + 0.5 * (4 + 2 * math.tanh(0.4))
    assert info["Critic_Loss"] == pytest.approx(((first - 2) ** 2 + 0.25) / 2)
    assert info["Actor_Loss"] == pytest.approx(-(1.5 + math.tanh(0.2)))


def test_damped_noise_has_a_memory_that_ends_with_the_episode(worlds):
    algo = worlds.make_algo("ddpg", {"exploration": {"std": 0.2, "damping": 0.15}})
    obs, state = {"s": torch.zeros(2, 1)}, algo.initial_state(2)
    first = algo.act(obs, state, explore=True).state
    generator = torch.Generator().manual_seed(0)
    fresh = torch.empty(2, 1).normal_(generator=generator)
    second = algo.act(obs, first, explore=True, generator=torch.Generator().manual_seed(0)).state
    torch.testing.assert_close(
        second["policy"]["noise"], 0.85 * first["policy"]["noise"] + 0.2 * fresh
    )
    reset = algo.reset_state(second, torch.tensor([True, False]))["policy"]["noise"]
    assert reset[0].item() == 0 and reset[1].item() == second["policy"]["noise"][1].item()


def test_targets_follow_after_each_update(worlds):
    algo = worlds.make_algo("ddpg", {"target_tau": 0.5})
    before = algo.nets["critic_target"].head.weight.clone()
    algo.train_on_batch(worlds.two_transitions(), 1)
    online = algo.nets["critic"].head.weight
    torch.testing.assert_close(
        algo.nets["critic_target"].head.weight, 0.5 * (before + online), rtol=0, atol=1e-6
    )
