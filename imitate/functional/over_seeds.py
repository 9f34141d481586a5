"""Mean, interquartile mean or median over several training seeds, with a confidence interval.

The mean has Student's t interval, which is valid for few seeds if their results are roughly normal; a percentile
bootstrap of three to five seeds is too narrow (Colas, Sigaud, Oudeyer 2018, arXiv:1806.08295). Interquartile mean and
median have a percentile bootstrap over seeds, as in Agarwal et al. 2021 (arXiv:2108.13264) for the interquartile mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Statistic = Literal["mean", "iqm", "median"]
FEWEST_SEEDS = {"mean": 1, "iqm": 4, "median": 1}
"""Smallest number of seeds for each statistic. The interquartile mean needs four to drop a quarter at each end."""
RESAMPLES = 10_000


class Estimate(NamedTuple):
    """A statistic over seeds.

    Attributes:
        value: the statistic, in the unit of the results.
        low, high: confidence interval; None for a single seed.
        std: sample standard deviation (n - 1); None for a single seed.
        n: number of seeds.
    """

    value: float
    low: float | None
    high: float | None
    std: float | None
    n: int


def estimate(
    values: Sequence[float],
    statistic: Statistic = "mean",
    confidence: float = 0.95,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Estimate:
    """Estimate a statistic from one result per seed.

    Args:
        values: results, one per seed; at least ``FEWEST_SEEDS[statistic]``.
        statistic: 'mean', 'iqm' (interquartile mean) or 'median'.
        confidence: level of the interval, in (0, 1).
        bounds: range of possible results; the interval is clipped to it.

    Raises:
        ValueError: too few values, or one that is not finite.
    """
    n = len(values)
    if n < FEWEST_SEEDS[statistic]:
        raise ValueError(f"{statistic} needs at least {FEWEST_SEEDS[statistic]} seeds, got {n}")
    if not all(map(math.isfinite, values)):
        raise ValueError(f"results over seeds must be finite, got {list(values)}")
    array = np.asarray(values, np.float64)
    value = float(_statistic(array[None], statistic)[0])
    if n == 1:
        return Estimate(value, None, None, None, 1)
    std = float(array.std(ddof=1))
    if statistic == "mean":
        spread = student_t_quantile(0.5 + confidence / 2.0, n - 1) * std / math.sqrt(n)
        low, high = value - spread, value + spread
    else:
        low, high = _bootstrap(array, statistic, confidence)
    return Estimate(value, max(low, bounds[0]), min(high, bounds[1]), std, n)


def student_t_quantile(probability: float, dof: int) -> float:
    """Quantile of Student's t distribution with an integer number of degrees of freedom.

    The distribution function is Abramowitz and Stegun's finite series (26.7.3 and 26.7.4), solved by bisection.

    Args:
        probability: in [0.5, 1).
        dof: degrees of freedom, at least 1.
    """
    if not 0.5 <= probability < 1 or dof < 1:
        raise ValueError(
            f"wanted a probability in [0.5, 1) and dof >= 1, got {probability} and {dof}"
        )
    inside = 2.0 * probability - 1.0  # P(|T| <= t)
    low, high = 0.0, math.pi / 2.0
    for _ in range(100):
        middle = (low + high) / 2.0
        if _within(middle, dof) < inside:
            low = middle
        else:
            high = middle
    return math.sqrt(dof) * math.tan((low + high) / 2.0)


def _within(angle: float, dof: int) -> float:
    """Return P(|T| <= sqrt(dof) tan(angle))."""
    cosine = math.cos(angle)
    odd = dof % 2
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(1 + odd, dof, 2):
        total += term
        term *= k / (k + 1) * cosine * cosine
    series = math.sin(angle) * total
    return 2.0 / math.pi * (angle + series) if odd else series


def _bootstrap(
    values: NDArray[np.float64], statistic: Statistic, confidence: float
) -> tuple[float, float]:
    """Percentile interval. The random draws are always the same, so that a table can be reproduced."""
    rows = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    outside = (1.0 - confidence) / 2.0
    low, high = np.quantile(_statistic(values[rows], statistic), (outside, 1.0 - outside))
    return float(low), float(high)


def _statistic(values: NDArray[np.float64], statistic: Statistic) -> NDArray[np.float64]:
    """Compute the statistic (N,) of each row of values (N, seeds)."""
    if statistic == "mean":
        return np.asarray(values.mean(axis=1))
    if statistic == "median":
        return np.asarray(np.median(values, axis=1))
    cut = values.shape[1] // 4
    ordered = np.sort(values, axis=1)
    return np.asarray(ordered[:, cut : values.shape[1] - cut].mean(axis=1))
