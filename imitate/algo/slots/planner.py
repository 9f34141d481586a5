"""Slot ``planner`` of an algorithm: search for the actions with the highest score in a learned model.

    "algo": {"planner": {"type": "cem", "horizon": 25}}

A type is a section derived from :class:`PlannerConfig`, and a class under ``@register("cem", CEMConfig)``. The types
below are registered here; types of other packages are entry points in the group ``imitate.planners``. A plan is part of
the policy's state; the search of the next step starts from it.

The types are random shooting, the cross-entropy method and MPPI. ``score(plans (B, P, H, A)) -> (B, P)`` scores P
candidate plans of H actions, for each of B problems; higher is better. Actions are within ``[-1, 1]``. The B problems
never influence each other. An algorithm with a policy can give its plans as *proposals*, which are candidates in each
iteration.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pydantic import ConfigDict, Field, model_validator
from torch import Tensor
from typing_extensions import Self

from imitate.config import Section
from imitate.config.kinds import Kinds
from imitate.functional.sampling import (
    draw_class,
    draw_normal,
    fill_normal,
    fill_uniform,
    pick_class,
)
from imitate.system import clock

Enough = Callable[[], bool]
"""Function that returns true if a search has to end after this iteration."""

Score = Callable[[Tensor], Tensor]
"""Function that scores plans: ``(B, P, H, A) -> (B, P)``."""

MIDDLE = 0.0
"""Middle between the limits of an action, which are -1 and 1."""
INITIAL_STD = 1.0
"""Initial standard deviation of samples: half the distance between the limits of an action."""
WORST = -1e30
"""Score of a plan whose predicted return is not finite."""


class Search(NamedTuple):
    """Result of :func:`mppi`.

    Attributes:
        mean: (B, H, A) weighted mean of the last elites.
        std: (B, H, A) weighted standard deviation of the last elites.
        elites: (B, E, H, A) the last elites.
        weights: (B, E) weights of the last elites, which sum to 1.
    """

    mean: Tensor
    std: Tensor
    elites: Tensor
    weights: Tensor


def finite(scores: Tensor) -> Tensor:
    """Replace scores that are not finite by :data:`WORST`, so that their plans are not chosen."""
    return scores.nan_to_num(nan=WORST, posinf=WORST, neginf=WORST)


def shifted(plan: Tensor) -> Tensor:
    """Shift a plan (B, H, A) by one step; its last action becomes the middle of the limits."""
    return torch.cat([plan[:, 1:], torch.full_like(plan[:, :1], MIDDLE)], dim=1)


def random_shooting(
    score: Score,
    shape: tuple[int, int, int],
    population: int,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
    proposals: Tensor | None = None,
) -> Tensor:
    """Return the best of P plans: the proposals, and uniformly drawn ones.

    Args:
        score: scores plans.
        shape: (B, H, A).
        population: number of plans, P.
        generator: source of randomness.
        device: device on which the plans are drawn.
        proposals: (B, P', H, A) plans that are among the P candidates; None: no proposals.

    Returns:
        (B, H, A) best plans.
    """
    size, horizon, ac_dim = shape
    drawn = population - (0 if proposals is None else proposals.shape[1])
    plans = fill_uniform(torch.empty(size, drawn, horizon, ac_dim, device=device), generator)
    plans = _joined(proposals, plans.mul_(2.0).sub_(1.0))
    best, _ = _best(score, plans, 1)
    return best[:, 0]


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
    proposals: Tensor | None = None,
    enough: Enough | None = None,
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
        proposals: (B, P', H, A) plans that are among the P candidates of each iteration; None: no proposals.
        enough: called between iterations; the search ends if it returns true. None: all iterations are made.

    Returns:
        (B, H, A) mean of the last Gaussian.
    """
    variance = std.square()
    for number in range(iterations):
        if number and enough is not None and enough():
            break
        drawn = _drawn(mean, variance.sqrt(), population, generator, proposals)
        best, _ = _best(score, drawn, elites)
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
    proposals: Tensor | None = None,
    enough: Enough | None = None,
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
        inverse_temperature: sharpness of the weights; with 0 all elites have equal weights.
        std_limits: smallest and largest standard deviation.
        generator: source of randomness.
        proposals: (B, P', H, A) plans that are among the P candidates of each iteration; None: no proposals.
        enough: called between iterations; the search ends if it returns true. None: all iterations are made.
    """
    for number in range(iterations):
        if number and enough is not None and enough():
            break
        drawn = _drawn(mean, std, population, generator, proposals)
        best, scores = _best(score, drawn, elites)
        weights = (inverse_temperature * scores).softmax(-1)
        share = weights[..., None, None]
        mean = (share * best).sum(1)
        std = (share * (best - mean.unsqueeze(1)).square()).sum(1).sqrt().clamp(*std_limits)
    return Search(mean, std, best, weights)


def _drawn(
    mean: Tensor,
    std: Tensor,
    population: int,
    generator: torch.Generator | None,
    proposals: Tensor | None,
) -> Tensor:
    """Return P candidates (B, P, H, A): the proposals, then clipped samples of the Gaussian."""
    count = population - (0 if proposals is None else proposals.shape[1])
    noise = fill_normal(mean.new_empty(mean.shape[0], count, *mean.shape[1:]), generator)
    plans = torch.addcmul(mean.unsqueeze(1), noise, std.unsqueeze(1)).clamp_(-1.0, 1.0)
    return _joined(proposals, plans)


def _joined(proposals: Tensor | None, plans: Tensor) -> Tensor:
    return plans if proposals is None else torch.cat([proposals, plans], dim=1)


def _best(score: Score, plans: Tensor, elites: int) -> tuple[Tensor, Tensor]:
    """Return the elites (B, E, H, A) of candidates (B, P, H, A), best first, and their scores (B, E)."""
    scores, places = score(plans).topk(elites, dim=-1)
    return plans[torch.arange(len(plans), device=plans.device)[:, None], places], scores


Plan = dict[str, Tensor]
"""State of the search: tensors with leading dimension B."""


class PlannerConfig(Section):
    """Options of ``algo.planner``; each type of planner adds its own options."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(
        "cem",
        min_length=1,
        description="type of the planner, such as 'cem', 'mppi' or 'random_shooting'",
    )
    horizon: int = Field(25, ge=1, description="H: number of planned steps")


class RandomShootingConfig(PlannerConfig):
    """Options of a planner of type ``random_shooting``."""

    model_config = {**Section.model_config}

    population: int = Field(
        5000, ge=1, description="number of plans that are drawn, of which the best is taken"
    )


class ElitesConfig(PlannerConfig):
    """Common options of planners that fit a Gaussian to the best plans, the elites."""

    model_config = {**Section.model_config}

    population: int = Field(400, ge=1, description="number of plans sampled per iteration")
    elites: int = Field(
        40, ge=1, description="number of best plans, to which the Gaussian is fitted"
    )
    iterations: int = Field(
        5, ge=1, description="number of iterations of sampling and fitting per search"
    )

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.elites > self.population:
            raise ValueError(
                f"elites {self.elites} is above population {self.population}: lower elites or raise population"
            )
        return self


class CEMConfig(ElitesConfig):
    """Options of a planner of type ``cem``."""

    rate: float = Field(
        0.9,
        gt=0,
        le=1,
        description="fraction by which mean and variance of the Gaussian move towards those of the elites",
    )
    min_std: float = Field(0.003, ge=0, description="smallest standard deviation of the Gaussian")


class MPPIConfig(ElitesConfig):
    """Options of a planner of type ``mppi``."""

    inverse_temperature: float = Field(
        0.5,
        ge=0,
        description="elites have the weight exp(inverse_temperature * score); 0: equal weights",
    )
    std_limits: tuple[float, float] = Field(
        (0.05, 2.0), description="smallest and largest standard deviation of the Gaussian"
    )


class Planner(ABC):
    """Search for the best actions in B states in parallel.

    Args:
        config: section of the planner.
        ac_dim: A, action dimensions.

    Attributes:
        budget_s: seconds after which a search makes no further iteration; None: no limit.
        searches: number of searches with a budget.
        cut: number of searches that the budget ended.
    """

    def __init__(self, config: Any, ac_dim: int) -> None:
        self.config = config
        self.ac_dim = ac_dim
        self.budget_s: float | None = None
        self.searches = self.cut = 0

    def _limit(self) -> Enough | None:
        """Start the clock of a search; return a function that is true as soon as the time budget is used up."""
        if self.budget_s is None:
            return None
        end = clock.now() + self.budget_s
        self.searches += 1

        def enough() -> bool:
            over = clock.now() >= end
            self.cut += over
            return over

        return enough

    def initial_plan(self, batch_size: int, device: torch.device) -> Plan:
        """Return the plan at the start of an episode: the middle of the limits."""
        shape = (batch_size, self.config.horizon, self.ac_dim)
        return {"mean": torch.full(shape, MIDDLE, device=device)}

    @abstractmethod
    def plan(
        self,
        score: Score,
        plan: Plan,
        *,
        explore: bool = False,
        generator: torch.Generator | None = None,
        proposals: Tensor | None = None,
        near: Tensor | None = None,
    ) -> tuple[Tensor, Plan]:
        """Return the actions (B, A) to execute now, and the plan from which the next search starts.

        Args:
            score: function that scores plans (B, P, H, A).
            plan: result of :meth:`initial_plan` or of the last call.
            explore: add the exploration noise of a rollout.
            generator: source of randomness.
            proposals: (B, P', H, A) plans of a policy, which are candidates in each iteration; None: no proposals.
            near: share in [0, 1], a scalar, with which mean and standard deviation of the proposals replace mean and
                standard deviation of the first samples; None: 0. Planners without a Gaussian ignore this share.
        """

    def _start(
        self, mean: Tensor, std: float, proposals: Tensor | None, near: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation (B, H, A) of the first samples."""
        spread = torch.full_like(mean, std)
        if proposals is None or near is None:
            return mean, spread
        own = proposals.std(1) if proposals.shape[1] > 1 else torch.zeros_like(mean)
        return torch.lerp(mean, proposals.mean(1), near), torch.lerp(spread, own, near)


PLANNERS: Kinds[Planner, PlannerConfig] = Kinds(
    "algo.planner",
    __package__,
    "imitate.planners",
    PlannerConfig,
    ("random_shooting", "cem", "mppi"),
)
register = PLANNERS.register


@register("random_shooting", RandomShootingConfig)
class RandomShooting(Planner):
    """Best of many uniformly drawn plans; nothing is kept between steps."""

    def initial_plan(self, batch_size: int, device: torch.device) -> Plan:
        """Return a placeholder, zeros (B,), because this planner keeps no plan."""
        return {"searches": torch.zeros(batch_size, device=device)}

    def plan(
        self,
        score: Score,
        plan: Plan,
        *,
        explore: bool = False,
        generator: torch.Generator | None = None,
        proposals: Tensor | None = None,
        near: Tensor | None = None,
    ) -> tuple[Tensor, Plan]:
        """Return the first action of the best plan."""
        searches = plan["searches"]
        shape = (len(searches), self.config.horizon, self.ac_dim)
        best = random_shooting(
            score, shape, self.config.population, generator, searches.device, proposals
        )
        return best[:, 0], plan


@register("cem", CEMConfig)
class CEM(Planner):
    """Cross-entropy method, started from the previous step's mean, shifted by one step."""

    def plan(
        self,
        score: Score,
        plan: Plan,
        *,
        explore: bool = False,
        generator: torch.Generator | None = None,
        proposals: Tensor | None = None,
        near: Tensor | None = None,
    ) -> tuple[Tensor, Plan]:
        """Return the first action of the fitted mean."""
        config = self.config
        mean = cem(
            score,
            *self._start(plan["mean"], INITIAL_STD, proposals, near),
            population=config.population,
            elites=config.elites,
            iterations=config.iterations,
            rate=config.rate,
            min_std=config.min_std,
            generator=generator,
            proposals=proposals,
            enough=self._limit(),
        )
        return mean[:, 0], {"mean": shifted(mean)}


@register("mppi", MPPIConfig)
class MPPI(Planner):
    """Model predictive path integral, started from the previous step's mean, shifted by one step."""

    def plan(
        self,
        score: Score,
        plan: Plan,
        *,
        explore: bool = False,
        generator: torch.Generator | None = None,
        proposals: Tensor | None = None,
        near: Tensor | None = None,
    ) -> tuple[Tensor, Plan]:
        """Return the first action of one elite, drawn by the weights, with noise in rollouts."""
        config = self.config
        low, high = config.std_limits
        mean, std = self._start(plan["mean"], high, proposals, near)
        found = mppi(
            score,
            mean,
            std.clamp(low, high),
            population=config.population,
            elites=config.elites,
            iterations=config.iterations,
            inverse_temperature=config.inverse_temperature,
            std_limits=config.std_limits,
            generator=generator,
            proposals=proposals,
            enough=self._limit(),
        )
        chosen = draw_class(found.weights.log(), generator)
        action = pick_class(found.elites[:, :, 0], chosen)
        if explore:
            action = draw_normal(action, found.std[:, 0], generator).clamp(-1.0, 1.0)
        return action, {"mean": shifted(found.mean)}


def built(config: PlannerConfig, ac_dim: int) -> Planner:
    """Create the planner that a configuration section describes."""
    return PLANNERS.find(config.type)[0](config, ac_dim)
