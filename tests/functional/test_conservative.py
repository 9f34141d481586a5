"""The conservative term against integrals that are known."""

import math

import pytest
import torch

from imitate.functional.conservative import calibrated, sampled_logsumexp, uniform_log_density


def test_uniform_log_density():
    assert uniform_log_density(3) == pytest.approx(math.log(1 / 8))


def test_a_constant_value_integrates_exactly():
    # Q = 2 everywhere on [-1, 1]^2: log of 4 e^2, whatever the number of samples.
    q = torch.full((3, 5, 7), 2.0)
    log_density = torch.full((5, 7), uniform_log_density(2))
    expected = torch.full((3, 5), 2.0 + math.log(4.0))
    torch.testing.assert_close(sampled_logsumexp(q, log_density), expected)


def test_samples_are_weighted_by_their_density():
    # (e^1 / 0.5 + e^2 / 0.25) / 2.
    q = torch.tensor([[1.0, 2.0]])
    log_density = torch.tensor([[0.5, 0.25]]).log()
    expected = math.log((2 * math.e + 4 * math.e**2) / 2)
    assert sampled_logsumexp(q, log_density).item() == pytest.approx(expected)


def test_samples_of_two_distributions_together_estimate_the_integral():
    # Q(a) = 3 a on [-1, 1]: the integral of exp(Q) is (e^3 - e^-3) / 3. Half of the samples are uniform, half have the
    # density (1 + a) / 2, whose distribution function (1 + a)^2 / 4 is inverted.
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(2, 1, 100_000, generator=generator, dtype=torch.float64)
    uniform, tilted = 2 * u[0] - 1, 2 * u[1].sqrt() - 1
    actions = torch.cat([uniform, tilted], dim=1)
    log_density = torch.cat([torch.full_like(uniform, 0.5).log(), ((1 + tilted) / 2).log()], dim=1)
    expected = math.log((math.exp(3) - math.exp(-3)) / 3)
    assert sampled_logsumexp(3 * actions, log_density).item() == pytest.approx(expected, abs=0.01)


def test_values_below_the_reference_are_not_pushed_further():
    q = torch.tensor([[[1.0, 5.0], [2.0, -4.0]]], requires_grad=True)
    values = calibrated(q, torch.tensor([3.0, -1.0]))
    assert values.tolist() == [[[3.0, 5.0], [2.0, -1.0]]]
    values.sum().backward()
    assert q.grad.tolist() == [[[0.0, 1.0], [1.0, 0.0]]]
