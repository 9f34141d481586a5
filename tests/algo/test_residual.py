"""Corrections of a frozen policy, worked out by hand."""

import math

import pytest
import torch

from imitate.policy.checkpoint import checkpoint_dict


@pytest.fixture
def residual(worlds):
    def make(slope=0.1, offset=0.0, hidden=(), **section):
        base = worlds.make_algo("bc")
        worlds.set_actor(base.nets["policy"], slope, offset)
        algo = worlds.make_algo("residual", section, hidden=hidden)
        ckpt = checkpoint_dict(base, env_metadata={}, shape_metadata={})
        algo.base.adopt(ckpt, algo.preprocess)
        return algo

    return make


def set_correction(net, state, base, offset=0.0):
    """Let a correction be ``tanh(state s + base b + offset)``."""
    net.head.action.weight.data = torch.tensor([[float(state), float(base)]])
    net.head.action.bias.data = torch.tensor([float(offset)])


def actors_gradients(worlds, algo):
    """Updates without length until the actor's turn has come."""
    for _ in range(algo.config.actor.update_freq):
        info = worlds.gradients(algo, worlds.two_transitions())
    return info


def test_it_begins_as_the_frozen_policy(residual, worlds):
    algo = residual(slope=0.5, hidden=(8,))
    for state in (-1.0, 0.25, 3.0):
        assert worlds.action_in(algo, state) == pytest.approx(math.tanh(0.5 * state))


def test_it_sees_what_it_corrects_and_reaches_so_far(residual, worlds):
    algo = residual(slope=0.5, reach=0.3)
    set_correction(algo.nets["actor"], 0.2, -1.0, 0.1)
    base = math.tanh(0.5)
    assert worlds.action_in(algo, 1) == pytest.approx(base + 0.3 * math.tanh(0.2 - base + 0.1))
    set_correction(algo.nets["actor"], 0, 0, 9.0)
    assert worlds.action_in(algo, 4) == 1.0
    assert worlds.action_in(algo, -4) == pytest.approx(-math.tanh(2.0) + 0.3, abs=1e-6)


def test_beyond_the_limits_the_way_back_has_a_gradient(residual, worlds):
    algo = residual(slope=0.0, offset=math.atanh(0.9), reach=0.5, penalty=0.0)
    set_correction(algo.nets["actor"], 0, 0, 1.0)
    worlds.set_critic(algo.nets["critic"], (0, 2), (0, 2))
    info = actors_gradients(worlds, algo)
    # The action 0.9 + 0.5 tanh(1) is clipped to 1, worth 2; the slope is that of the action before.
    assert info["Actor_Loss"] == pytest.approx(-2.0)
    slope = -2 * 0.5 * (1 - math.tanh(1.0) ** 2)
    assert algo.nets["actor"].head.action.bias.grad.item() == pytest.approx(slope, rel=1e-5)


def test_rollouts_have_noise_within_the_reach(residual):
    algo = residual(reach=0.1, exploration={"std": 5.0})
    obs, state = {"s": torch.zeros(200, 1)}, algo.initial_state(200)
    actions = algo.act(obs, state, explore=True).action
    assert actions.abs().max().item() == pytest.approx(0.1)
    assert actions.std().item() > 0.05


def test_noise_is_annealed_with_training_progress(residual):
    algo = residual(reach=0.1, exploration={"std": {"schedule": [[0, 5.0], [1, 0.0]]}})
    obs, state = {"s": torch.zeros(200, 1)}, algo.initial_state(200)
    algo.set_progress(1.0)
    assert torch.equal(
        algo.act(obs, state, explore=True).action, algo.act(obs, state, explore=False).action
    )


def test_the_error_of_a_validation_is_that_of_the_corrected_actions(residual, worlds):
    algo = residual(slope=0.0, offset=math.atanh(0.5), reach=0.5)
    set_correction(algo.nets["actor"], 0, 0, math.atanh(0.5))
    batch = worlds.two_transitions(actions=torch.tensor([[1.0], [0.5]]))
    assert worlds.losses(algo, batch)["Action_Error"] == pytest.approx(0.25)  # of 0.75


def test_targets_correct_the_frozen_policy_in_the_next_state(residual, worlds):
    algo = residual(slope=0.1, reach=0.5, actor={"noise_std": 0.0})
    set_correction(algo.nets["actor"], 0, 0, 9.0)
    set_correction(algo.nets["actor_target"], 0, 0, 0.3)
    worlds.set_critic(algo.nets["critic_target"], (1, 1), (0, 9))
    info = worlds.losses(algo, worlds.two_transitions())
    following = math.tanh(0.4) + 0.5 * math.tanh(0.3)
    # In state 4 the critics say 4 + a and 9 a.
    first = 1 + 0.5 * min(4 + following, 9 * following)
    assert info["Q_Targets"] == pytest.approx((first + 0.5) / 2)


def test_the_correction_alone_learns(residual, worlds):
    algo = residual(slope=0.1, reach=0.5)
    worlds.set_critic(algo.nets["critic"], (0, 2), (0, 4))
    info = actors_gradients(worlds, algo)
    # Values of both critics: 3 tanh 0.1 and 3 tanh 0.2.
    assert info["Actor_Loss"] == pytest.approx(-1.5 * (math.tanh(0.1) + math.tanh(0.2)))
    assert algo.nets["actor"].head.action.bias.grad.item() == pytest.approx(-1.5)
    assert all(p.grad is None for p in algo.base.parameters())


def test_a_correction_costs_what_it_must_be_worth(residual, worlds):
    algo = residual(slope=0.0, offset=0.0, reach=0.5, penalty=0.2)
    worlds.set_critic(algo.nets["critic"], (3, 2), (3, 2))
    set_correction(algo.nets["actor"], 0, 0, 0.4)
    f = math.tanh(0.4)
    batch = worlds.two_transitions()
    values = [3 * s + 2 * 0.5 * f for s in batch["obs"]["s"][:, 0].tolist()]
    mean = sum(values) / len(values)
    info = actors_gradients(worlds, algo)
    assert info["Actor_Loss"] == pytest.approx(0.2 * mean * f**2 - mean, rel=1e-5)
    assert info["Correction"] == pytest.approx(f)
    # d/df (0.2 mean f^2 - f), where the mean in the weight is a number, not a function.
    slope = 0.2 * mean * 2 * f - 1
    expected = slope * (1 - f**2)
    assert algo.nets["actor"].head.action.bias.grad.item() == pytest.approx(expected, rel=1e-4)


def test_a_serialized_one_needs_no_file(residual, worlds):
    first, second = residual(slope=0.7), worlds.make_algo("residual", seed=1)
    second.deserialize(first.serialize())
    assert worlds.action_in(second, 1) == pytest.approx(math.tanh(0.7))


@pytest.mark.parametrize(("reach", "least", "most"), [(1.0, 0.2, 1.0), (0.1, -0.45, -0.399)])
def test_it_improves_as_far_as_it_reaches(residual, worlds, reach, least, most):
    algo = residual(slope=0.0, offset=math.atanh(-0.5), hidden=(32,), reach=reach)
    assert worlds.action_in(algo, 1) == pytest.approx(-0.5)
    for name in ("actor", "critic"):
        algo.optimizers[name].param_groups[0]["lr"] = 1e-2
    assert worlds.learns(
        algo, worlds.bandit(), 400, lambda: least < worlds.action_in(algo, 1) < most
    )
