"""DDPG: its losses by hand, its noise, and a bandit."""

import math

import pytest
import torch


def test_losses_by_hand(worlds):
    algo = worlds.make_algo("ddpg")
    worlds.set_actor(algo.nets["actor_target"], slope=0.1)
    worlds.set_actor(algo.actor, slope=0.0, offset=0.2)
    worlds.set_critic(algo.nets["critic"], (1, 1))
    worlds.set_critic(algo.nets["critic_target"], (1, 2))
    batch = worlds.two_transitions()
    info = worlds.losses(algo, batch)
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


def test_it_learns_the_better_action(worlds):
    algo = worlds.make_algo("ddpg", hidden=(32,))
    algo.optimizers["critic"].param_groups[0]["lr"] = 1e-2
    worlds.learn(algo, worlds.bandit(), 300)
    assert worlds.action_in(algo, 1) > 0.3
