"""AIRL: a reward and a shaping potential against the policy's density, by hand."""

import math

import numpy as np
import pytest
import torch


@pytest.fixture
def airl(worlds):
    """g = x and h = 10 x, in the absorbing state 5 and 7; the first of two actions is three times as likely."""
    algo = worlds.make_imitator("airl", {"discriminator": {"gradient_penalty": 0.0}})
    worlds.set_discriminator(algo.reward_source.discriminator, 1.0, (0.0, 0.0), 5.0)
    worlds.set_discriminator(algo.reward_source.potential, 10.0, (), 7.0)
    head = algo.nets["policy"].head.logits
    torch.nn.init.zeros_(head.weight)
    head.bias.data = torch.tensor([math.log(3.0), 0.0])
    return algo


def test_rewards_are_the_shaped_reward_less_the_log_density(airl, worlds):
    rewards = airl.rollout_rewards(worlds.two_lanes()).reshape(-1)
    # Discount 0.5: g + 0.5 h(x') - h(x) - log pi; after the terminal of row 2 h is 7.
    after, action = [2, 91, None, 5, 94, 95], [0, 1, 1, 0, 0, 0]
    expected = [
        x + 0.5 * (7 if later is None else 10 * later) - 10 * x - math.log([0.75, 0.25][taken])
        for x, (later, taken) in enumerate(zip(after, action, strict=True))
    ]
    # There 0.5 / (1 - 0.5) = 1 times the absorbing state's: g + 0.5 h - h = 5 - 3.5.
    expected[2] += 1.5
    np.testing.assert_allclose(rewards, expected, rtol=1e-5)


def test_logits_of_demonstrations_have_the_present_policy_s_density(airl, worlds):
    batch = airl.prepare_rollout(worlds.two_lanes())
    batch["expert"] = {
        "obs": {"x": torch.tensor([[0.0], [0.0]])},
        "next_obs": {"x": torch.tensor([[0.1], [0.1]])},
        "actions": torch.eye(2),
        "terminals": torch.zeros(2),
    }
    info = airl.train_on_batch(batch, 1, validate=True)
    own = airl.rollout_rewards(worlds.two_lanes()).reshape(-1)
    own[2] -= 1.5
    # Of the expert 0.5 - log pi. The absorbing state counts once, for the policy.
    of_expert = [0.5 - math.log(0.75), 0.5 - math.log(0.25)]
    loss = sum(math.log1p(math.exp(-x)) for x in of_expert) / 2
    loss += (np.logaddexp(0, own).sum() + math.log1p(math.exp(1.5))) / 7
    assert info["Discriminator_Loss"].item() == pytest.approx(loss, rel=1e-5)
    assert info["Absorbing_Logit"].item() == pytest.approx(1.5)


def test_reward_and_potential_learn_and_the_policy_does_not_by_their_loss(airl, worlds):
    own = airl.prepare_rollout(worlds.two_lanes())
    own["expert"] = {
        "obs": own["obs"],
        "next_obs": {"x": own["obs"]["x"] + 1.0},
        "actions": own["executed"],
        "terminals": torch.ones(6),
    }
    own["advantages"], own["returns"] = torch.zeros(6), own["values"].clone()
    nets = airl.nets
    before = {name: p.detach().clone() for name, p in nets.named_parameters()}
    airl.train_on_batch(own, 1)
    moved = {name for name, p in nets.named_parameters() if not torch.equal(before[name], p)}
    assert moved == {
        f"discriminator.{part}.last.{name}"
        for part in ("reward", "potential")
        for name in ("weight", "bias")
    }


def test_with_states_alone_the_reward_ignores_actions(worlds):
    algo = worlds.make_imitator("airl", {"discriminator": {"sees_actions": False}})
    batch = {
        "obs": {"x": torch.ones(2, 1)},
        "next_obs": {"x": torch.ones(2, 1)},
        "actions": torch.eye(2),
        "terminals": torch.zeros(2),
        "expert": torch.zeros(2),
        "policy_log_prob": torch.zeros(2),
    }
    first, second = algo.reward_source.rewards(batch).tolist()
    assert first == second
