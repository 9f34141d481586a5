"""Flow matching: paths, times and integrators against analytic fields."""

import math

import pytest
import torch

from imitate.errors import ConfigError
from imitate.functional.flow import draw_times, integrate, straight_path


def test_straight_path_by_hand():
    noise = torch.tensor([[[1.0], [2.0]], [[0.0], [4.0]]])
    data = torch.tensor([[[5.0], [0.0]], [[1.0], [4.0]]])
    x, velocity = straight_path(noise, data, torch.tensor([0.25, 1.0]))
    assert x.flatten().tolist() == [2.0, 1.5, 1.0, 4.0]
    assert velocity.flatten().tolist() == [4.0, -2.0, 1.0, 0.0]


def test_a_constant_field_needs_one_step():
    x = torch.randn(3, 4, 2)
    for method in ("euler", "heun"):
        torch.testing.assert_close(integrate(lambda x, t: torch.ones_like(x), x, 1, method), x + 1)


def test_integrators_by_hand():
    # dx/dt = x from 1 in two steps: Euler (1 + h)^2, Heun (1 + h + h^2 / 2)^2.
    one = torch.ones(1)
    assert integrate(lambda x, t: x, one, 2, "euler").item() == pytest.approx(2.25)
    assert integrate(lambda x, t: x, one, 2, "heun").item() == pytest.approx(2.640625)


def test_times_that_the_network_sees():
    for method, expected in (("euler", [0.0, 0.5]), ("heun", [0.0, 0.5, 0.5, 1.0])):
        seen = []
        integrate(lambda x, t, seen=seen: seen.append(t) or x, torch.ones(1), 2, method)
        assert seen == expected


@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("heun", 2)])
def test_order_of_convergence_on_a_rotation(method, order):
    """dx/dt = w (-y, x) turns by w; halving the step divides the error by 2^order."""
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    start = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    end = torch.tensor([[math.cos(1.0), math.sin(1.0)]], dtype=torch.float64)
    errors = [
        (integrate(lambda x, t: x @ turn, start, n, method) - end).norm().item() for n in (40, 80)
    ]
    assert errors[0] / errors[1] == pytest.approx(2**order, rel=0.05)


def test_time_dependent_field():
    # dx/dt = 2 t ends at x + 1; Heun is exact for it, Euler with n steps is short by 1 / n.
    zero = torch.zeros(1)
    field = lambda x, t: torch.full_like(x, 2 * t)  # noqa: E731
    assert integrate(field, zero, 4, "heun").item() == pytest.approx(1.0)
    assert integrate(field, zero, 4, "euler").item() == pytest.approx(0.75)


def test_following_the_learned_path_ends_at_the_data():
    """With all data at one point the velocity field is (point - x) / (1 - t); Euler ends exactly there."""
    point, noise = torch.tensor([[0.5, -2.0]]), torch.randn(6, 2)
    found = integrate(lambda x, t: (point - x) / (1 - t), noise, 5)
    torch.testing.assert_close(found, point.expand(6, 2), atol=1e-5, rtol=0)


def quantile(density, q, **kwargs):
    times = draw_times(40000, density, generator=torch.Generator().manual_seed(0), **kwargs)
    assert times.shape == (40000,)
    assert times.min() >= 0
    assert times.max() <= 1
    return times.quantile(q).item()


def test_time_densities_by_their_quantiles():
    assert quantile("uniform", 0.25) == pytest.approx(0.25, abs=0.01)
    # Median of Beta(1.5, 1): 0.5^(2/3) = 0.62996; time 0.999 * (1 - 0.62996).
    assert quantile("beta", 0.5) == pytest.approx(0.36967, abs=0.01)
    assert quantile("beta", 0.5, beta=1.0, max_time=1.0) == pytest.approx(0.5, abs=0.01)
    # The logit's quantile at 0.8413 is mean + std.
    assert quantile("logit_normal", 0.841345) == pytest.approx(1 / (1 + math.exp(-1)), abs=0.01)
    expected = 1 / (1 + math.exp(-0.5))
    assert quantile("logit_normal", 0.5, mean=0.5, std=2.0) == pytest.approx(expected, abs=0.01)
    # A standard deviation above the mean: logit 0.5 + 2.
    expected = 1 / (1 + math.exp(-2.5))
    wide = quantile("logit_normal", 0.841345, mean=0.5, std=2.0)
    assert wide == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: draw_times(3, "logitnormal"), "did you mean 'logit_normal'"),
        (lambda: integrate(lambda x, t: x, torch.ones(1), 3, "heum"), "did you mean 'heun'"),
        (lambda: integrate(lambda x, t: x, torch.ones(1), 0), "got 0; wanted at least 1"),
    ],
)
def test_impossible_settings_are_refused(call, words):
    with pytest.raises(ConfigError, match=words):
        call()
