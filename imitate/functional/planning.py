"""Search for sequences of actions with the highest score: random shooting, cross-entropy method, MPPI.

``score(plans (B, P, H, A)) -> (B, P)`` scores P candidate plans of H actions, for each of B problems; higher
is better. Actions are within ``[-1, 1]``. The B problems never influence each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Score = Callable[[Tensor], Tensor]
"""Function that scores plans: ``(B, P, H, A) -> (B, P)``."""

MIDDLE = 0.0
"""Middle of the limits of an action."""
INITIAL_STD = 1.0
"""Half the distance between the limits."""


class Search(NamedTuple):
    """Result of :func:`mppi`.

    Attributes:
        mean: (B, H, A) weighted mean of the last elites.
        std: (B, H, A) their weighted standard deviation.
        elites: (B, E, H, A) the last elites.
        weights: (B, E) weights of the last elites, which sum to 1.
    """

    mean: Tensor
    std: Tensor
    elites: Tensor
    weights: Tensor


def shifted(plan: Tensor) -> Tensor:
    """Shift a plan (B, H, A) by one step; its last action becomes the middle of the limits."""
    return torch.cat([plan[:, 1:], torch.full_like(plan[:, :1], MIDDLE)], dim=1)


def random_shooting(
    score: Score,
    shape: tuple[int, int, int],
    population: int,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Return the best of P uniformly drawn plans.

    Args:
        score: scores plans.
        shape: (B, H, A).
        population: number of plans, P.
        generator: source of randomness.
        device: device on which the plans are drawn.

    Returns:
        (B, H, A) best plans.
    """
    size, horizon, ac_dim = shape
    plans = torch.empty(size, population, horizon, ac_dim, device=device)
    plans.uniform_(-1.0, 1.0, generator=generator)
    best = score(plans).argmax(-1)
    return plans[torch.arange(size, device=device), best]


def cem(
    score: Score,
    mean: Tensor,
    std: Tensor,
    *,
    population: int,
    elites: int,
    iterations: int,
    rate: float = 0.9,
    min_std: float = 0.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the mean of a Gaussian that is repeatedly refitted to its best samples (cross-entropy method).

    ``mean <- (1 - rate) mean + rate mean(elites)``, and likewise for the variance (Chua et al. 2018, arXiv:1805.12114).
    Samples are clipped to the limits before they are scored, and elites are clipped samples, so that the mean stays
    within the limits.

    Args:
        score: scores plans.
        mean: (B, H, A) mean of the first samples.
        std: (B, H, A) standard deviation of the first samples.
        population: number of samples per iteration, P.
        elites: number of best samples, to which the Gaussian is fitted.
        iterations: number of refits.
        rate: step size of a refit, in (0, 1].
        min_std: smallest standard deviation.
        generator: source of randomness.

    Returns:
        (B, H, A) mean of the last Gaussian.
    """
    variance = std.square()
    for _ in range(iterations):
        best, _ = _best(score, mean, variance.sqrt(), population, elites, generator)
        mean = torch.lerp(mean, best.mean(1), rate)
        variance = torch.lerp(variance, best.var(1, correction=0), rate).clamp(min=min_std**2)
    return mean


def mppi(
    score: Score,
    mean: Tensor,
    std: Tensor,
    *,
    population: int,
    elites: int,
    iterations: int,
    inverse_temperature: float = 0.5,
    std_limits: tuple[float, float] = (0.05, 2.0),
    generator: torch.Generator | None = None,
) -> Search:
    """Refit a Gaussian repeatedly to its best samples, each weighted by its score.

    Weights are ``exp(inverse_temperature (score - greatest score))``, normalized (Williams et al. 2015,
    arXiv:1509.01149; with elites as in Hansen et al. 2022, arXiv:2203.04955).

    Args:
        score: scores plans.
        mean: (B, H, A) mean of the first samples.
        std: (B, H, A) standard deviation of the first samples.
        population: number of samples per iteration, P.
        elites: number of best samples, E, to which the Gaussian is fitted.
        iterations: number of refits, at least 1.
        inverse_temperature: sharpness of the weights; with 0 all elites count the same.
        std_limits: smallest and largest standard deviation.
        generator: source of randomness.
    """
    for _ in range(iterations):
        best, scores = _best(score, mean, std, population, elites, generator)
        weights = (inverse_temperature * scores).softmax(-1)
        share = weights[..., None, None]
        mean = (share * best).sum(1)
        std = (share * (best - mean.unsqueeze(1)).square()).sum(1).sqrt().clamp(*std_limits)
    return Search(mean, std, best, weights)


def _best(
    score: Score,
    mean: Tensor,
    std: Tensor,
    population: int,
    elites: int,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor]:
    """Return the elites (B, E, H, A) of P clipped samples, best first, and their scores (B, E)."""
    noise = torch.empty(
        mean.shape[0], population, *mean.shape[1:], dtype=mean.dtype, device=mean.device
    )
    noise.normal_(generator=generator)
    plans = torch.addcmul(mean.unsqueeze(1), noise, std.unsqueeze(1)).clamp_(-1.0, 1.0)
    scores, places = score(plans).topk(elites, dim=-1)
    return plans[torch.arange(len(plans), device=plans.device)[:, None], places], scores
