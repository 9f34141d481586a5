"""Test of paired trials that remains valid if one looks at the result after each trial and stops at any time.

Among the pairs in which only one of two policies succeeds, let the first win ``w`` and lose ``l``. If both are equally
good, each such pair is the toss of a fair coin. The e-value is the likelihood ratio of a coin of unknown bias against
the fair one, averaged over Jeffreys' prior Beta(1/2, 1/2) of the bias:

    e = integral of p^w (1 - p)^l dBeta(p; 1/2, 1/2) / 2^-(w + l) = 2^(w + l) B(w + 1/2, l + 1/2) / B(1/2, 1/2)

Under a fair coin the expected e after the next toss is the present e (a martingale that begins at 1), so by Ville's
inequality (1939) it ever reaches ``1 / alpha`` with a probability of at most ``alpha``. Tests of a fixed number of
trials, such as McNemar's, have no such guarantee when one looks after each trial and stops at will.
(Robbins 1970, Annals of Mathematical Statistics 41; Ramdas et al. 2023, Statistical Science 38.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable

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
    """Evidence against equal success of two policies; ``1 / alpha`` or more rejects equality at level alpha.

    For example, it is 1 after a win, 3/2 after two, 5/2 after three, 1/2 after a win and a loss. It is infinite if it
    exceeds the range of floats.
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

    It contains the biases p that the test does not reject, that is those with ``B(w + 1/2, l + 1/2) / B(1/2, 1/2) < p^w
    (1 - p)^l
    / alpha``. With probability ``1 - alpha`` the true bias is in all intervals of a comparison.

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
