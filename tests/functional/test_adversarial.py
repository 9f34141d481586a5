"""Formulas of adversarial imitation, by hand."""

import math

import pytest
import torch

from imitate.functional.adversarial import discriminator_loss, with_absorbing_state


def softplus(x):
    return math.log1p(math.exp(x))


def test_each_terminal_counts_as_one_more_step_in_the_absorbing_state():
    logits, absorbing = torch.tensor([0.0, 1.0, -1.0, 2.0, 3.0]), torch.tensor(-4.0)
    expert = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0])
    terminals = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0])
    loss = discriminator_loss(logits, absorbing, expert, terminals)
    of_expert = (softplus(0) + softplus(-1) + softplus(4)) / 3
    of_policy = (softplus(-1) + softplus(2) + softplus(3) + 2 * softplus(-4)) / 5
    assert loss.item() == pytest.approx(of_expert + of_policy)


def test_without_terminals_the_absorbing_state_is_left_out():
    logits, expert = torch.tensor([2.0, -3.0]), torch.tensor([1.0, 0.0])
    loss = discriminator_loss(logits, torch.tensor(math.inf), expert, torch.zeros(2))
    assert loss.item() == pytest.approx(softplus(-2) + softplus(-3))


def test_one_side_alone_has_no_loss_from_the_other():
    loss = discriminator_loss(torch.ones(2), torch.tensor(5.0), torch.ones(2), torch.zeros(2))
    assert loss.item() == pytest.approx(softplus(-1))


@pytest.mark.parametrize(("discount", "steps"), [(0.5, 1.0), (0.9, 9.0), (1.0, 1000.0)])
def test_a_terminal_adds_the_return_of_the_absorbing_state(discount, steps):
    rewards, terminals = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0])
    found = with_absorbing_state(rewards, torch.tensor(3.0), terminals, discount)
    assert found.tolist() == pytest.approx([1.0, 2.0 + steps * 3.0], rel=1e-6)


def test_where_all_states_have_one_reward_the_length_of_an_episode_does_not_matter():
    once = torch.tensor(0.7)
    rewards = with_absorbing_state(torch.full((3,), 0.7), once, torch.tensor([0.0, 0.0, 1.0]), 0.9)
    short = with_absorbing_state(torch.full((1,), 0.7), once, torch.ones(1), 0.9)
    long = rewards[0] + 0.9 * rewards[1] + 0.81 * rewards[2]
    assert long.item() == pytest.approx(short.item())
