"""Statistics of results: success rates, several training seeds, sequential tests of paired trials, D4RL's score.

The mean, interquartile mean or median over several training seeds has a confidence interval. For the mean it is
Student's t interval, which is valid for few seeds if their results are roughly normal; a percentile bootstrap of three
to five seeds is too narrow (Colas, Sigaud, Oudeyer 2018, arXiv:1806.08295). For the interquartile mean and the median
it is a percentile bootstrap over seeds, as in Agarwal et al. 2021 (arXiv:2108.13264) for the interquartile mean.
Results of few seeds can agree by chance, so the interval is never narrower than the interval from the episodes alone.
For a rate, that is Wilson's interval of all episodes, as if one policy had played them; for a return, Student's t
interval from the deviations within the seeds.

The test of paired trials remains valid if its result is read after each trial and the trials stop at any time. Among
the pairs in which only one of two policies succeeds, let the first win ``w`` and lose ``l``. If both are equally good,
each such pair is the toss of a fair coin. The e-value is the likelihood ratio of a coin of unknown bias against the
fair one, averaged over Jeffreys' prior Beta(1/2, 1/2) of the bias:

    e = integral of p^w (1 - p)^l dBeta(p; 1/2, 1/2) / 2^-(w + l) = 2^(w + l) B(w + 1/2, l + 1/2) / B(1/2, 1/2)

Under a fair coin the expected e after the next toss is the present e (a martingale that begins at 1), so by Ville's
inequality (1939) it ever reaches ``1 / alpha`` with a probability of at most ``alpha``. Tests of a fixed number of
trials, such as McNemar's, have no such guarantee.
(Robbins 1970, Annals of Mathematical Statistics 41; Ramdas et al. 2023, Statistical Science 38.)

D4RL's normalized score of a return is ``100 (return - random) / (expert - random)``: 0 is the return of random actions,
100 that of an expert. The reference returns are D4RL's (Fu et al., D4RL: Datasets for Deep Data-Driven Reinforcement
Learning, 2020, arXiv:2004.07219; ``d4rl/infos.py``), by the names of the same tasks in gymnasium and
gymnasium-robotics. D4RL measured them with version 2 of the locomotion tasks; later versions differ slightly in their
rewards and contact forces.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Rate(NamedTuple):
    """Successes among a number of episodes."""

    successes: int
    n: int

    @property
    def value(self) -> float:
        """Fraction of successes, in [0, 1]."""
        return self.successes / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the success probability."""
        return wilson_interval(self.successes, self.n)


def rate_of(outcomes: Iterable[bool | None]) -> Rate | None:
    """Pool outcomes of episodes: true, false, or None if unknown.

    If some outcomes are known, an unknown outcome counts as a failure, because some environments report only successes.
    If no outcome is known, the result is None.
    """
    found = list(outcomes)
    if all(outcome is None for outcome in found):
        return None
    return Rate(sum(map(bool, found)), len(found))


def wilson_interval(successes: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Confidence interval of a success probability (Wilson, JASA 1927).

    Args:
        successes: number of successes, 0 to n; not necessarily a whole number, for example for a mean of several rates.
        n: number of trials; with 0 the interval is (0, 1).
        confidence: level of the interval, in (0, 1).

    Returns:
        lower and upper end, in [0, 1].
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must be from 0 to {n}, got {successes}")
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    rate = successes / n
    spread = z * math.sqrt(rate * (1.0 - rate) / n + z * z / (4.0 * n * n))
    centre = rate + z * z / (2.0 * n)
    shrink = 1.0 + z * z / n
    # exact at the ends; rounding would give about 1e-17
    low = 0.0 if successes == 0 else (centre - spread) / shrink
    high = 1.0 if successes == n else (centre + spread) / shrink
    return low, high


def mcnemar_p_value(only_first: int, only_second: int) -> float:
    """Exact two-sided McNemar test: a sign test on the pairs that differ.

    Args:
        only_first: number of pairs in which only the first policy succeeded.
        only_second: number of pairs in which only the second policy succeeded.

    Returns:
        p-value: the probability of a split at least as uneven if both policies are equally good.
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


Statistic = Literal["mean", "iqm", "median"]
FEWEST_SEEDS = {"mean": 1, "iqm": 4, "median": 1}
"""Smallest number of seeds for each statistic. The interquartile mean needs four to drop a quarter at each end."""
RESAMPLES = 10_000


class Estimate(NamedTuple):
    """A statistic over seeds, or over episodes.

    Attributes:
        value: the statistic, in the unit of the results.
        low, high: confidence interval; None if it is unknown.
        std: sample standard deviation (n - 1); None for a single result.
        n: number of results.
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

    Returns:
        the statistic; without an interval if there is only one result, or if all results are equal.

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
    low, high = max(low, bounds[0]), min(high, bounds[1])
    return Estimate(value, low, high, std, n) if low < high else Estimate(value, None, None, std, n)


def rate_over_seeds(
    rates: Sequence[float],
    episodes: Sequence[int],
    statistic: Statistic = "mean",
    confidence: float = 0.95,
) -> Estimate:
    """Estimate a success rate from one rate per seed; the interval is at least Wilson's of all episodes.

    Args:
        rates: share of successes of each seed.
        episodes: number of episodes of each seed; 0 if unknown, then only the rates of the seeds are used.
        statistic: see :func:`estimate`.
        confidence: level of the interval, in (0, 1).
    """
    made = estimate(rates, statistic, confidence, (0.0, 1.0))
    if min(episodes) < 1:
        return made
    n = sum(episodes)
    return _widened(made, *wilson_interval(made.value * n, n, confidence))


def mean_over_seeds(
    means: Sequence[float],
    stds: Sequence[float | None],
    episodes: Sequence[int],
    statistic: Statistic = "mean",
    confidence: float = 0.95,
) -> Estimate:
    """Estimate a return from one mean per seed.

    If necessary, the confidence interval is widened to include Student's t interval of the episodes within the seeds.

    Args:
        means: mean over the episodes of each seed.
        stds: standard deviation over the episodes of each seed; if one is None (unknown), only the means are used.
        episodes: number of episodes of each seed.
        statistic: see :func:`estimate`.
        confidence: level of the interval, in (0, 1).
    """
    made = estimate(means, statistic, confidence)
    known = [std for std in stds if std is not None]
    dof = sum(episodes) - len(episodes)
    if len(known) < len(means) or min(episodes) < 1 or dof < 1:
        return made
    variance = sum(std * std / n for std, n in zip(known, episodes, strict=True))
    half = student_t_quantile(0.5 + confidence / 2.0, dof) * math.sqrt(variance) / len(means)
    return _widened(made, made.value - half, made.value + half) if half > 0 else made


def _widened(made: Estimate, low: float, high: float) -> Estimate:
    """Return the estimate with its interval widened to include this interval."""
    ends = [low, high, *(end for end in made[1:3] if end is not None)]
    return made._replace(low=min(ends), high=max(ends))


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
    """Percentile interval of the bootstrap. The random draws have a fixed seed, so that a table can be reproduced."""
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


_PRIOR = 0.5
_LOG_PRIOR = 2 * math.lgamma(_PRIOR) - math.lgamma(2 * _PRIOR)


def log_e_value(wins: int, losses: int) -> float:
    """Natural logarithm of the e-value against a fair coin, see the module's docstring.

    Args:
        wins: number of pairs in which only the first policy succeeded.
        losses: number of pairs in which only the second policy succeeded.
    """
    if wins < 0 or losses < 0:
        raise ValueError(f"wins and losses must be at least 0, got {wins} and {losses}")
    return (wins + losses) * math.log(2.0) + _log_marginal(wins, losses)


def e_value(wins: int, losses: int) -> float:
    """E-value against equal success of two policies; a value of at least ``1 / alpha`` rejects equality at level alpha.

    For example, the e-value is 1 after one win, 3/2 after two, 5/2 after three, and 1/2 after a win and a loss. It is
    infinite if it exceeds the range of floats.
    """
    try:
        return math.exp(log_e_value(wins, losses))
    except OverflowError:
        return math.inf


def anytime_p_value(outcomes: Iterable[int]) -> float:
    """P-value that is valid at any stopping time: 1 over the largest e-value so far, at most 1.

    Args:
        outcomes: results of the pairs in order: 1 if only the first policy succeeded, -1 if only the second did, else
            0.
    """
    wins = losses = 0
    most = 0.0
    for outcome in outcomes:
        wins += outcome > 0
        losses += outcome < 0
        most = max(most, log_e_value(wins, losses))
    return math.exp(-most)


def share_interval(wins: int, losses: int, alpha: float = 0.05) -> tuple[float, float]:
    """Confidence interval of the probability that the first policy wins a differing pair, valid at any stopping time.

    The interval contains the biases p that the test does not reject, which satisfy
    ``B(w + 1/2, l + 1/2) / B(1/2, 1/2) < p^w (1 - p)^l / alpha``. With probability ``1 - alpha`` the true bias is in
    all intervals of a comparison.

    Returns:
        lower and upper end, in [0, 1].
    """
    n = wins + losses
    if n == 0:
        return 0.0, 1.0
    limit, peak = _log_marginal(wins, losses) + math.log(alpha), wins / n
    return (
        _edge(wins, losses, limit, outside=0.0, inside=peak),
        _edge(wins, losses, limit, outside=1.0, inside=peak),
    )


def _log_marginal(wins: int, losses: int) -> float:
    """Logarithm of ``B(w + 1/2, l + 1/2) / B(1/2, 1/2)``."""
    a, b = wins + _PRIOR, losses + _PRIOR
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b) - _LOG_PRIOR


def _log_likelihood(wins: int, losses: int, p: float) -> float:
    if (p <= 0.0 and wins) or (p >= 1.0 and losses):
        return -math.inf
    return (wins * math.log(p) if wins else 0.0) + (losses * math.log1p(-p) if losses else 0.0)


def _edge(wins: int, losses: int, limit: float, *, outside: float, inside: float) -> float:
    """Find the p at which the log-likelihood crosses ``limit`` by bisection; at ``inside`` it is at least ``limit``."""
    if _log_likelihood(wins, losses, outside) >= limit:
        return outside
    for _ in range(60):
        middle = (outside + inside) / 2
        if _log_likelihood(wins, losses, middle) >= limit:
            inside = middle
        else:
            outside = middle
    return inside


def auroc(
    negatives: Sequence[NDArray[np.float64]],
    positives: Sequence[NDArray[np.float64]],
    confidence: float = 0.95,
) -> Estimate:
    """Estimate the area under the receiver operating characteristic: P(positive > negative); a tie counts as half.

    Args:
        negatives: scores (T,) of each group of negatives; the scores of a group, such as an episode, are not
            independent.
        positives: scores (T,) of each group of positives.
        confidence: level of the interval in (0, 1). The interval is a bootstrap over groups; it is omitted for a
            single group of negatives or of positives.
    """
    ordered = [np.sort(group) for group in negatives]
    wins = np.array(
        [
            [
                float((np.searchsorted(low, high) + np.searchsorted(low, high, "right")).sum()) / 2
                for low in ordered
            ]
            for high in positives
        ]
    )
    sizes = np.array([[len(low) * len(high) for low in ordered] for high in positives], np.float64)
    value = float(wins.sum() / sizes.sum())
    if min(wins.shape) < 2:
        return Estimate(value, None, None, None, sum(wins.shape))
    random = np.random.default_rng(0)
    # how often each group is drawn in each resample, (N, groups)
    rows, columns = (
        random.multinomial(count, np.full(count, 1.0 / count), RESAMPLES // 10)
        for count in wins.shape
    )
    resampled = ((rows @ wins) * columns).sum(1) / ((rows @ sizes) * columns).sum(1)
    outside = (1.0 - confidence) / 2.0
    low, high = np.quantile(resampled, (outside, 1.0 - outside))
    return Estimate(value, float(low), float(high), None, sum(wins.shape))


REFERENCE_RETURNS = {
    "HalfCheetah": (-280.178953, 12135.0),
    "Hopper": (-20.272305, 3234.3),
    "Walker2d": (1.629008, 4592.3),
    "Ant": (-325.6, 3879.7),
    "AdroitHandPen": (96.262799, 3076.8331017826877),
    "AdroitHandHammer": (-274.856578, 12794.134825156867),
    "AdroitHandDoor": (-56.512833, 2880.5693087298737),
    "AdroitHandRelocate": (-6.425911, 4233.877797728884),
}
"""D4RL's returns of random actions and of an expert, by the environment's name without version."""


def d4rl_score(env_name: str, episode_return: float) -> float | None:
    """Return the normalized score of a return, or None if D4RL has no reference for the environment.

    Args:
        env_name: registered id such as ``HalfCheetah-v5``, with or without its module.
        episode_return: sum of rewards of an episode, or a mean of such sums.
    """
    task, _, version = env_name.rpartition(":")[2].rpartition("-v")
    if not version.isdigit() or task not in REFERENCE_RETURNS:
        return None
    random, expert = REFERENCE_RETURNS[task]
    return 100.0 * (episode_return - random) / (expert - random)
