"""Intervals and tests of success rates against scipy and numbers worked out by hand."""

import math

import numpy as np
import pytest
import scipy

from imitate.system.statistics import (
    auroc,
    compare_paired,
    mcnemar_p_value,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("successes", "n"), [(0, 1), (0, 50), (1, 3), (47, 50), (294, 300), (5, 5)]
)
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_wilson_interval_is_scipys(successes, n, confidence):
    expected = scipy.stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
    got = wilson_interval(successes, n, confidence)
    assert got == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_interval_of_no_trials_says_nothing():
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_wilson_interval_refuses_impossible_counts():
    with pytest.raises(ValueError, match="from 0 to 5"):
        wilson_interval(6, 5)


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (5, 5), (3, 9), (12, 2), (700, 800)])
def test_mcnemar_is_the_sign_test(b, c):
    expected = scipy.stats.binomtest(b, b + c).pvalue if b + c else 1.0
    assert mcnemar_p_value(b, c) == pytest.approx(expected)


def lists(both, only_first, only_second, neither):
    first = [True] * (both + only_first) + [False] * (only_second + neither)
    second = [True] * both + [False] * only_first + [True] * only_second + [False] * neither
    return first, second


def test_comparison_by_hand():
    # n = 10: both 4, only the first 3, only the second 1, neither 2. Rates 0.7 and 0.5.
    # Wilson: (0.396778, 0.892209) and (0.236593, 0.763407).
    # ad - bc = 8 - 3 = 5, less n / 2 = 0: no correlation is left.
    # down = sqrt(0.303222^2 + 0.263407^2), up = sqrt(0.192209^2 + 0.263407^2).
    result = compare_paired(*lists(4, 3, 1, 2))
    assert (result.n, result.only_first, result.only_second) == (10, 3, 1)
    assert result.rate_first == 0.7
    assert result.rate_second == 0.5
    assert result.difference == pytest.approx(0.2)
    assert result.low == pytest.approx(0.2 - math.hypot(0.303222, 0.263407), abs=1e-5)
    assert result.high == pytest.approx(0.2 + math.hypot(0.192209, 0.263407), abs=1e-5)
    assert result.p_value == pytest.approx(10 / 16)  # 2 (1 + 4) / 2^4


def test_the_correlation_of_the_pairs_by_hand():
    # n = 20: both 8, one alone 2 and 2, neither 8. Rates 0.5, Wilson 0.299298 and 0.700702: a = 0.200702 to each side.
    # ad - bc = 60, less n / 2 = 50; phi = 50 / sqrt(10^4) = 0.5: sqrt(a^2 - 2 phi a^2 + a^2) = a.
    result = compare_paired(*lists(8, 2, 2, 8))
    assert (result.low, result.high) == pytest.approx((-0.200702, 0.200702), abs=1e-6)


@pytest.mark.parametrize(
    ("counts", "low", "high"),
    [
        # Rates 0.5 of two: Wilson 0.094531 and 0.905469, 0.405469 to each side; 0.405469 sqrt(2) = 0.573420.
        # ad - bc = 1 is less than n / 2: no correlation is left.
        ((1, 0, 0, 1), -0.573420, 0.573420),
        # ad - bc = -1, phi = -1: the margins add up.
        ((0, 1, 1, 0), -0.810938, 0.810938),
        # Rates 1 and 0.5: Wilson from 2 / 5.841459 = 0.342380 to 1. No correlation with what never fails:
        # down sqrt(0.657620^2 + 0.405469^2) = 0.772573, up 0.405469.
        ((1, 1, 0, 0), 0.5 - 0.772573, 0.5 + 0.405469),
    ],
)
def test_intervals_of_two_pairs_by_hand(counts, low, high):
    result = compare_paired(*lists(*counts))
    assert (result.low, result.high) == pytest.approx((low, high), abs=2e-6)


@pytest.mark.parametrize("value", [True, False])
def test_equal_certain_outcomes_have_an_interval_around_zero(value):
    result = compare_paired([value] * 30, [value] * 30)
    assert result.low < 0 < result.high
    assert result.p_value == 1.0


def test_comparison_of_unequal_lists_is_refused():
    with pytest.raises(ValueError, match="got 2 and 1"):
        compare_paired([True, False], [True])


def test_auroc_counts_pairs_and_its_interval_is_over_groups():
    usual, other = [np.array([1.0, 3.0]), np.array([2.0])], [np.array([2.0, 4.0])]
    # 2 wins over 1, ties 2, loses to 3; 4 wins three times
    assert auroc(usual, other) == (pytest.approx(4.5 / 6), None, None, None, 3)
    apart = auroc([np.zeros(3), np.ones(2)], [np.full(2, 5.0), np.full(4, 6.0)])
    assert apart[:3] == (1.0, 1.0, 1.0)
    # one of two groups is lost to: by group it is drawn 0, 1 or 2 times of 2
    mixed = auroc([np.zeros(1), np.full(1, 2.0)], [np.ones(1), np.ones(1)])
    assert mixed[:3] == (0.5, 0.0, 1.0)
