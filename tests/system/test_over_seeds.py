"""Statistics over seeds against scipy and numbers worked out by hand."""

import math

import numpy as np
import pytest
import scipy

from imitate.system.statistics import Estimate, estimate, mean_over_seeds, student_t_quantile


@pytest.mark.parametrize("dof", [1, 2, 3, 4, 5, 6, 9, 20, 101])
@pytest.mark.parametrize("probability", [0.5, 0.6, 0.95, 0.975, 0.995])
def test_the_t_quantile_is_scipys(dof, probability):
    expected = scipy.stats.t.ppf(probability, dof)
    assert student_t_quantile(probability, dof) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("probability", "dof"), [(0.49, 3), (1.0, 3), (0.9, 0)])
def test_the_t_quantile_refuses_what_it_cannot_solve(probability, dof):
    with pytest.raises(ValueError, match="wanted a probability"):
        student_t_quantile(probability, dof)


def test_the_mean_of_three_seeds_by_hand():
    # Mean 0.8, deviations -0.1, 0, 0.1, std 0.1; t(0.975, 2) = 4.302653: 4.302653 * 0.1 / sqrt(3) = 0.248414.
    result = estimate([0.7, 0.8, 0.9])
    assert result == pytest.approx((0.8, 0.551586, 1.048414, 0.1, 3), abs=1e-6)
    assert estimate([0.7, 0.8, 0.9], bounds=(0, 1)).high == 1
    assert estimate([0.1, 0.2, 0.3], bounds=(0, 1)).low == 0


def test_the_interval_of_the_mean_is_scipys():
    values = [3.0, 1.5, -2.0, 8.0, 4.0]
    expected = scipy.stats.t.interval(0.9, 4, np.mean(values), scipy.stats.sem(values))
    assert estimate(values, confidence=0.9)[1:3] == pytest.approx(expected)


@pytest.mark.parametrize("n", [4, 5, 7, 8, 9])
def test_the_interquartile_mean_is_scipys_trimmed_mean(n):
    values = np.random.default_rng(n).normal(size=n).tolist()
    assert estimate(values, "iqm").value == pytest.approx(scipy.stats.trim_mean(values, 0.25))


def test_the_interquartile_mean_and_the_median_leave_one_bad_seed_out():
    assert estimate([0.0, 0.8, 0.9, 1.0], "iqm").value == pytest.approx(0.85)
    assert estimate([0.0, 0.8, 0.9], "median").value == 0.8


def test_the_bootstrap_of_two_seeds_by_hand():
    # Resamples of {0, 1}: both 0 or both 1 with probability 1/4 each, so 2.5 % and 97.5 % lie at the ends.
    assert estimate([0.0, 1.0], "median") == Estimate(0.5, 0.0, 1.0, math.sqrt(0.5), 2)


def test_the_bootstrap_agrees_with_scipys():
    values = [0.2, 0.9, 0.5, 0.7, 0.65, 0.8]
    low, high = estimate(values, "iqm")[1:3]
    expected = scipy.stats.bootstrap(
        (values,),
        lambda x, axis: scipy.stats.trim_mean(x, 0.25, axis=axis),
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=0.02)
    assert estimate(values, "iqm")[1:3] == (low, high), "the same draws each time"


def test_the_bootstrap_is_ten_thousand_draws_of_one_seed():
    """A table that was printed can be made again to the last digit."""
    values = np.array([0.21, 0.93, 0.55, 0.72, 0.67])
    draws = np.random.default_rng(0).integers(0, 5, (10_000, 5))
    middles = [sorted(values[draw])[1:4] for draw in draws]
    # 90 %: a twentieth is outside at each end.
    expected = np.quantile([sum(middle) / 3 for middle in middles], [0.05, 0.95])
    assert estimate(values, "iqm", confidence=0.9)[1:3] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_a_single_seed_has_no_interval(statistic):
    assert estimate([0.4], statistic) == Estimate(0.4, None, None, None, 1)


@pytest.mark.parametrize("statistic", ["mean", "median", "iqm"])
def test_results_that_agree_have_no_interval_instead_of_one_without_width(statistic):
    agreed = Estimate(500.0, None, None, 0.0, 4)
    assert estimate([500.0] * 4, statistic) == agreed
    assert mean_over_seeds([500.0] * 4, [0.0] * 4, [10] * 4, statistic) == agreed
    of_episodes = mean_over_seeds([500.0] * 4, [2.0] * 4, [10] * 4, statistic)
    assert of_episodes.low < 500 < of_episodes.high


def test_too_few_seeds_and_numbers_that_are_none_are_refused():
    with pytest.raises(ValueError, match="iqm needs at least 4 seeds, got 3"):
        estimate([1.0, 2.0, 3.0], "iqm")
    with pytest.raises(ValueError, match="mean needs at least 1 seeds, got 0"):
        estimate([])
    with pytest.raises(ValueError, match="must be finite"):
        estimate([1.0, math.nan])
