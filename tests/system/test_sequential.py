"""The sequential test of paired trials: numbers worked out by hand, error rates by simulation."""

import math

import numpy as np
import pytest
from scipy.integrate import quad

from imitate.system.statistics import anytime_p_value, e_value, log_e_value, share_interval

# B(1/2 + w, 1/2 + l) / B(1/2, 1/2) is (1/2)(3/2)...(w - 1/2) (1/2)...(l - 1/2) / (w + l)!, times 2^(w + l).
BY_HAND = [
    (0, 0, 1.0),
    (1, 0, 2 * (1 / 2)),
    (2, 0, 4 * (1 / 2) * (3 / 2) / 2),
    (3, 0, 8 * (1 / 2) * (3 / 2) * (5 / 2) / 6),
    (1, 1, 4 * (1 / 2) * (1 / 2) / 2),
    (2, 1, 8 * (1 / 2) * (3 / 2) * (1 / 2) / 6),
]


@pytest.mark.parametrize(("wins", "losses", "e"), BY_HAND)
def test_by_hand(wins, losses, e):
    assert e_value(wins, losses) == pytest.approx(e)
    assert e_value(losses, wins) == pytest.approx(e)


def test_the_example_numbers_of_the_docstring():
    assert [e_value(w, 0) for w in (1, 2, 3)] == pytest.approx([1.0, 1.5, 2.5])
    assert e_value(1, 1) == pytest.approx(0.5)


@pytest.mark.parametrize(("wins", "losses"), [(5, 2), (0, 9), (30, 20)])
def test_it_is_the_mixture_over_the_prior(wins, losses):
    # p = sin^2(t) has Jeffreys' prior when t is uniform in [0, pi/2].
    def likelihood(t):
        return (2 * np.sin(t) ** 2) ** wins * (2 * np.cos(t) ** 2) ** losses

    mean, _ = quad(likelihood, 0, math.pi / 2)
    assert e_value(wins, losses) == pytest.approx(mean * 2 / math.pi, rel=1e-6)


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (3, 1), (40, 37), (1000, 900)])
def test_a_fair_coin_leaves_it_as_it_is_on_average(wins, losses):
    after = [
        log_e_value(wins + 1, losses) - log_e_value(wins, losses),
        log_e_value(wins, losses + 1) - log_e_value(wins, losses),
    ]
    assert np.exp(after).mean() == pytest.approx(1.0)


def test_the_p_value_remembers_the_strongest_evidence():
    assert anytime_p_value([]) == 1.0
    assert anytime_p_value([1, 0, 1, 1]) == pytest.approx(1 / 2.5)
    assert anytime_p_value([1, 1, 1, -1, -1]) == pytest.approx(1 / 2.5)
    assert anytime_p_value([1, -1]) == 1.0
    assert anytime_p_value([-1] * 7) < 0.05 < anytime_p_value([-1] * 6)


def test_the_interval_is_the_test_inverted():
    low, high = share_interval(12, 3, 0.05)
    for p in (low, high):
        marginal = e_value(12, 3) / 2**15
        assert marginal / (p**12 * (1 - p) ** 3) == pytest.approx(20.0, rel=1e-6)
    assert low < 12 / 15 < high
    assert share_interval(0, 0) == (0.0, 1.0)
    assert share_interval(4, 0)[1] == 1.0
    assert share_interval(0, 4)[0] == 0.0
    # It leaves out the fair coin exactly when the test has decided.
    assert share_interval(7, 0)[0] > 0.5
    assert share_interval(6, 0)[0] < 0.5


def decided(first, second, pairs, repetitions, seed, alpha=0.05):
    """Share of comparisons that decide for the first, for the second, and their mean number of pairs."""
    random = np.random.default_rng(seed)
    a = random.random((repetitions, pairs)) < first
    b = random.random((repetitions, pairs)) < second
    wins, losses = (a & ~b).cumsum(1), (b & ~a).cumsum(1)
    table = np.array([[log_e_value(w, n) for n in range(pairs + 1)] for w in range(pairs + 1)])
    over = table[wins, losses] >= math.log(1 / alpha) - 1e-12
    stopped = over.any(1)
    at = np.where(stopped, over.argmax(1), pairs - 1)
    rows = np.arange(repetitions)
    ahead = wins[rows, at] > losses[rows, at]
    return (stopped & ahead).mean(), (stopped & ~ahead).mean(), (at + 1).mean()


@pytest.mark.parametrize("rate", [0.5, 0.9])
def test_false_alarms_are_rarer_than_alpha_though_one_looks_after_each_pair(rate):
    for_first, for_second, _ = decided(rate, rate, 150, 4000, seed=1)
    assert 0.005 < for_first + for_second < 0.05


@pytest.mark.parametrize(
    ("first", "second", "pairs", "power", "mean"),
    [(0.9, 0.5, 50, 0.97, 22.7), (0.7, 0.3, 50, 0.88, 26.6), (0.9, 0.7, 100, 0.76, 62.0)],
)
def test_power(first, second, pairs, power, mean):
    for_first, for_second, used = decided(first, second, pairs, 2000, seed=2)
    assert for_first == pytest.approx(power, abs=0.03)
    assert used == pytest.approx(mean, rel=0.06)
    assert for_second < 0.005


def test_counts_below_zero_are_refused():
    with pytest.raises(ValueError, match="at least 0"):
        e_value(-1, 2)


def test_an_e_value_beyond_floats_is_infinite():
    assert e_value(1000, 0) < e_value(1200, 0) == math.inf
