"""Directions of particles: two particles by hand, and the densities that they are samples of."""

import math

import pytest
import torch

from imitate.functional.particles import PENALTY, RULES, kernel, stein_objective

PAIR = torch.tensor([[1.0], [3.0]])
# one distance, 4, is the median: h = 4 / log 2, k_12 = exp(-4 / h) = 1/2, r_1 = (2 / h) k_12 (1 - 3)
AWAY = math.log(2.0) / 2.0


@pytest.mark.parametrize(
    "rule, gradient, weight, expected",
    [
        ("none", [2.0, 6.0], 1.0, [2.0, 6.0]),
        ("svgd", [2.0, 6.0], 0.0, [(2.0 + 3.0) / 2, (1.0 + 6.0) / 2]),
        ("svgd", [0.0, 0.0], 3.0, [3.0 * AWAY / 2, -3.0 * AWAY / 2]),
        ("svgd", [2.0, 6.0], 3.0, [2.5 + 1.5 * AWAY, 3.5 - 1.5 * AWAY]),
        # (K + ridge)^-1 divides (-1, 1) by 1 - 1/2 + ridge
        ("gfsf", [2.0, 6.0], 3.0, [2.0 + 3.0 * AWAY / 0.5001, 6.0 - 3.0 * AWAY / 0.5001]),
    ],
)
def test_two_particles_descend_away_from_each_other(rule, gradient, weight, expected):
    moved = RULES[rule](PAIR, torch.tensor(gradient)[:, None], weight)
    assert moved.flatten().tolist() == pytest.approx(expected, abs=1e-5)


def test_a_single_particle_and_equal_ones_have_a_kernel_without_repulsion():
    for points in (torch.ones(1, 2), torch.ones(3, 2)):
        near, away = kernel(points)
        assert torch.equal(near, torch.ones_like(near)) and not away.any()


def test_the_width_is_the_median_of_different_particles():
    near, _ = kernel(torch.tensor([[100.0], [101.0], [103.0]]))  # distances 1, 4, 9: h = 4 / log 3
    assert near[0].tolist() == pytest.approx([1.0, 3.0**-0.25, 3.0**-2.25], rel=1e-4)


def test_the_function_of_minmax_is_rewarded_for_descent_and_for_spreading():
    points, gradients = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, -1.0]])
    slope = torch.tensor(0.5, requires_grad=True)
    probe = torch.tensor([[1.0, -1.0]])
    value = stein_objective(lambda x: slope * x, points, gradients, 0.7, probe)
    # f = (1/2, 1): -G.f = -1/2, trace 2 * 1/2, |f|^2 = 5/4
    assert value.item() == pytest.approx(-0.5 + 0.7 * 1.0 - PENALTY * 1.25)
    value.backward()  # d/dslope: -G.x + 0.7 * 2 - 2 * 10 * slope * |x|^2
    assert slope.grad.item() == pytest.approx(-1.0 + 1.4 - 50.0)


@pytest.mark.nightly
@pytest.mark.parametrize("rule", ["svgd", "gfsf"])
def test_particles_become_samples_of_a_gaussian(rule):
    mean = torch.tensor([1.0, -2.0])
    covariance = torch.tensor([[1.0, 0.5], [0.5, 0.8]])
    precision = covariance.inverse()
    points = 0.1 * torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam([points], lr=0.1)
    for _ in range(300):
        points.grad = RULES[rule](points, (points - mean) @ precision, 1.0)
        optimizer.step()
    assert torch.allclose(points.mean(0), mean, atol=0.1)
    assert torch.allclose(points.t().cov(), covariance, atol=0.1)
