"""Generated particles: slopes, directions and generated MLPs by hand, and a Gaussian whose samples they become."""

import math

import pytest
import torch

from imitate.models.generator import Generator, WeightLayout, directions, inverse_products, mlp

AWAY = math.log(2.0) / 2.0
"""Repulsion of the points 1 and 3: tests/functional/test_particles.py."""

DAMPED = 1.01
"""Divisor of inverse slopes: the damped inverse of a single slope a is a / (a^2 + 0.01 a^2)."""


def linear(slopes, link=0.0):
    """A generator whose network is z -> slopes z."""
    generator = Generator(len(slopes), len(slopes[0]), (), link)
    generator.last.weight.data, generator.last.bias.data = torch.tensor(slopes), torch.zeros(1)
    return generator


def test_particles_and_products_with_the_inverse_slopes_by_hand():
    generator = linear([[1.0], [2.0]], link=0.5)  # J = [[1.5, 0], [2, 0.5]]
    noise = torch.tensor([[1.0, 4.0]])
    assert generator(noise).tolist() == [[1.5, 4.0]] and generator.draw(3).shape == (3, 2)
    # J^T y = (1, 1): y_2 / 2 = 1, 1.5 y_1 + 2 y_2 = 1
    found = inverse_products(generator, noise, torch.tensor([[[1.0, 1.0], [3.0, 0.0]]]))
    assert found.flatten().tolist() == pytest.approx([-2.0 / DAMPED, 2.0, 2.0 / DAMPED, 0.0])
    with pytest.raises(ValueError, match="noise_dim 3 exceeds a particle's 2"):
        Generator(2, 3, link=0.1)


def test_slopes_of_hidden_layers_are_those_of_autograd():
    torch.manual_seed(0)
    generator = Generator(3, 2, (5, 4), link=0.0)
    noise = generator.draw(6)
    for slopes, row in zip(generator.jacobian(noise), noise, strict=True):
        wanted = torch.autograd.functional.jacobian(lambda z: generator(z[None])[0], row)
        assert torch.allclose(slopes, wanted, atol=1e-6)


@pytest.mark.parametrize(
    "rule, expected",
    [
        # of the other draw: half its gradient, and the repulsion of particles at 2 and 6, half that of 1 and 3
        ("svgd", [3.0 + 1.5 * AWAY, 1.0 - 1.5 * AWAY]),
        # the repulsion of noise at 1 and 3 over the slope 2
        ("gpvi", [3.0 + 1.5 * AWAY / DAMPED, 1.0 - 1.5 * AWAY / DAMPED]),
        ("none", [2.0, 6.0]),
    ],
)
def test_directions_of_two_draws(rule, expected):
    generator, noise = linear([[2.0]]), torch.tensor([[1.0], [3.0]])
    found = directions(
        rule, generator, noise, generator(noise).detach(), torch.tensor([[2.0], [6.0]]), 3.0
    )
    assert found.flatten().tolist() == pytest.approx(expected, abs=1e-5)


def test_gpvi_repels_in_noise_where_svgd_repels_in_particles():
    # the first noise value moves both numbers of a particle, J^-T (-r, 0) = (-r, 0) / 1.5
    generator, noise = linear([[1.0], [2.0]], link=0.5), torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    moved = directions("gpvi", generator, noise, generator(noise), torch.zeros(2, 2), 3.0)
    wanted = 2.0 * AWAY / DAMPED
    assert moved[:, 0].tolist() == pytest.approx([wanted, -wanted], abs=1e-5)
    assert not moved[:, 1].any()


def test_a_generated_mlp_by_hand():
    layout = WeightLayout([4, 1, 1])
    assert layout.size == 7
    # first layer over the root of 4 inputs: weights 1, 0, 0, 1 and offset -1; then 3 h + 0.5
    particle = torch.tensor([[2.0, 0.0, 0.0, 2.0, -2.0, 3.0, 0.5]])
    x = torch.tensor([[[1.0, 9.0, 9.0, 2.0], [0.0, 9.0, 9.0, 0.5]]])
    assert mlp(layout, particle, x).flatten().tolist() == [6.5, 0.5]


SEEDS = [pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2)]


@pytest.mark.parametrize("seed", [0, *SEEDS])
@pytest.mark.parametrize("rule", ["svgd", "gfsf", "gpvi"])
def test_a_generator_learns_the_covariance_of_a_gaussian(rule, seed):
    """The example of the module, as it is there."""
    mean, covariance = torch.tensor([1.0, -2.0]), torch.tensor([[1.0, 0.5], [0.5, 0.8]])
    precision = covariance.inverse()
    torch.manual_seed(seed)
    generator = Generator(2)
    optimizer = torch.optim.Adam(generator.parameters(), 5e-3)
    for step in range(500):
        optimizer.param_groups[0]["lr"] = 5e-3 * (1 - step / 500)
        noise = generator.draw(128)
        particles = generator(noise)
        points = particles.detach()
        moved = directions(rule, generator, noise, points, (points - mean) @ precision, 1.0)
        optimizer.zero_grad()
        (moved * particles).sum().backward()
        optimizer.step()
    made = generator(generator.draw(20_000)).detach()
    assert torch.allclose(made.mean(0), mean, atol=0.1)
    assert torch.allclose(torch.cov(made.t()), covariance, rtol=0.1)
