"""Losses of policy gradients, by hand."""

import math

import pytest
import torch

from imitate.functional.policy_gradient import (
    clipped_share,
    clipped_surrogate,
    clipped_value_error,
    divergence_of_ratios,
)

RATIOS = torch.log(torch.tensor([2.0, 0.5, 1.1, 2.0, 0.5]))
"""Two ratios beyond 1 +- 0.2, one within, and the first two once more."""


def test_the_surrogate_is_clipped_where_a_larger_change_would_pay():
    advantages = torch.tensor([1.0, 1.0, 3.0, -1.0, -1.0])
    found = clipped_surrogate(RATIOS, advantages, clip=0.2)
    # Gains are held to 1.2, but too small a ratio of a good action is not; the other way round for bad actions.
    assert found.tolist() == pytest.approx([-1.2, -0.5, -3.3, 2.0, 0.8])


def test_where_it_is_clipped_there_is_no_gradient():
    ratios = RATIOS.clone().requires_grad_()
    clipped_surrogate(ratios, torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0]), clip=0.2).sum().backward()
    assert ratios.grad.tolist() == pytest.approx([0.0, -0.5, -1.1, 2.0, 0.0])


def test_values_are_clipped_around_the_old_ones_and_the_larger_error_counts():
    values, returns = torch.tensor([3.0, 6.0, 0.2]), torch.tensor([4.0, 0.0, 1.0])
    assert clipped_value_error(values, returns, torch.zeros(3), None).tolist() == pytest.approx(
        [1.0, 36.0, 0.64]
    )
    # Held to 0.5 the values are 0.5, 0.5 and 0.2.
    assert clipped_value_error(values, returns, torch.zeros(3), 0.5).tolist() == pytest.approx(
        [12.25, 36.0, 0.64]
    )


def test_the_divergence_is_zero_at_equal_policies_and_else_positive():
    found = divergence_of_ratios(torch.tensor([0.0, math.log(2.0), math.log(0.5)]))
    assert found.tolist() == pytest.approx([0.0, 1.0 - math.log(2.0), -0.5 + math.log(2.0)])


def test_the_divergence_estimates_that_of_the_old_policy_from_the_new():
    old, new = torch.tensor([0.8, 0.2]), torch.tensor([0.5, 0.5])
    expected = (old * (old / new).log()).sum()
    assert (old * divergence_of_ratios((new / old).log())).sum().item() == pytest.approx(
        expected.item()
    )


def test_the_share_of_clipped_ratios():
    assert clipped_share(RATIOS, 0.2).item() == pytest.approx(4 / 5)
