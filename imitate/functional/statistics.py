"""Statistics of success rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Confidence interval of a success probability (Wilson, JASA 1927).

    Args:
        successes: number of successes, 0 to n.
        n: number of trials; with 0 the interval is (0, 1).
        confidence: level of the interval, in (0, 1).

    Returns:
        lower and upper end, in [0, 1].
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must lie in 0..{n}, got {successes}")
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    rate = successes / n
    spread = z * math.sqrt(rate * (1.0 - rate) / n + z * z / (4.0 * n * n))
    centre = rate + z * z / (2.0 * n)
    shrink = 1.0 + z * z / n
    # exact at the ends, where rounding would give about 1e-17
    low = 0.0 if successes == 0 else (centre - spread) / shrink
    high = 1.0 if successes == n else (centre + spread) / shrink
    return low, high


def mcnemar_p_value(only_first: int, only_second: int) -> float:
    """Exact two-sided McNemar test: a sign test on the pairs that differ.

    Args:
        only_first: number of pairs in which only the first policy succeeded.
        only_second: number of pairs in which only the second policy succeeded.

    Returns:
        probability of a split at least as uneven, if both policies are equally good.
    """
    n = only_first + only_second
    tail = sum(math.comb(n, k) for k in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / (1 << n))  # integers, because 2.0**n overflows


class PairedComparison(NamedTuple):
    """Comparison of two policies on the same initial states.

    Attributes:
        n: number of pairs.
        rate_first, rate_second: success rates.
        difference: first minus second.
        low, high: confidence interval of the difference.
        only_first, only_second: numbers of pairs in which only one policy succeeded.
        p_value: p-value of the exact McNemar test of equal success.
    """

    n: int
    rate_first: float
    rate_second: float
    difference: float
    low: float
    high: float
    only_first: int
    only_second: int
    p_value: float


def compare_paired(
    first: Sequence[bool], second: Sequence[bool], confidence: float = 0.95
) -> PairedComparison:
    """Compare success rates on the same seeds. The interval is method 10 of Newcombe, Statistics in Medicine 1998.

    Args:
        first: success of the first policy for each seed.
        second: success of the second policy, in the same order of seeds.
        confidence: level of the interval of the difference.
    """
    if len(first) != len(second) or not first:
        raise ValueError(
            f"a paired comparison needs two lists of equal length, got {len(first)} and {len(second)}"
        )
    n = len(first)
    both = sum(bool(a and b) for a, b in zip(first, second, strict=True))
    only_first = sum(map(bool, first)) - both
    only_second = sum(map(bool, second)) - both
    low, high = _newcombe_interval(both, only_first, only_second, n, confidence)
    rate_first, rate_second = (both + only_first) / n, (both + only_second) / n
    return PairedComparison(
        n=n,
        rate_first=rate_first,
        rate_second=rate_second,
        difference=rate_first - rate_second,
        low=low,
        high=high,
        only_first=only_first,
        only_second=only_second,
        p_value=mcnemar_p_value(only_first, only_second),
    )


def _newcombe_interval(
    both: int, only_first: int, only_second: int, n: int, confidence: float
) -> tuple[float, float]:
    """Interval of the difference of two paired proportions from their two Wilson intervals."""
    neither = n - both - only_first - only_second
    successes_1, successes_2 = both + only_first, both + only_second
    p1, p2 = successes_1 / n, successes_2 / n
    low_1, high_1 = wilson_interval(successes_1, n, confidence)
    low_2, high_2 = wilson_interval(successes_2, n, confidence)
    margins = successes_1 * (n - successes_1) * successes_2 * (n - successes_2)
    determinant: float = both * neither - only_first * only_second
    if determinant > 0:  # continuity correction
        determinant = max(determinant - n / 2, 0.0)
    phi = determinant / math.sqrt(margins) if margins > 0 else 0.0
    down, up = _combine(p1 - low_1, high_2 - p2, phi), _combine(high_1 - p1, p2 - low_2, phi)
    return p1 - p2 - down, p1 - p2 + up


def _combine(a: float, b: float, correlation: float) -> float:
    return math.sqrt(max(0.0, a * a - 2.0 * correlation * a * b + b * b))
