"""Slot of algorithms that plan: search for the actions with the highest value in a learned model.

    "algo": {"planner": {"type": "cem", "horizon": 25}}

A type is a section derived from :class:`PlannerConfig`, and a class under ``@register("cem", CEMConfig)``. The types
below are registered here; types of other packages are entry points in the group ``imitate.planners``. A plan is part of
the policy's state; the search of the next step starts from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from pydantic import ConfigDict, Field, model_validator
from torch import Tensor
from typing_extensions import Self

from imitate.config import Section
from imitate.config.kinds import Kinds
from imitate.functional.planning import (
    INITIAL_STD,
    MIDDLE,
    Score,
    cem,
    mppi,
    random_shooting,
    shifted,
)
from imitate.functional.sampling import draw_class, draw_normal, pick_class

Plan = dict[str, Tensor]
"""State of the search: tensors with leading dimension B."""


class PlannerConfig(Section):
    """Section ``algo.planner``; each type adds its own keys."""

    model_config = ConfigDict(extra="allow")

    type: str = Field("cem", min_length=1, description="kind of search")
    horizon: int = Field(25, ge=1, description="H, number of planned steps")


class RandomShootingConfig(PlannerConfig):
    """Section of type ``random_shooting``."""

    model_config = {**Section.model_config}

    population: int = Field(5000, ge=1, description="number of plans drawn")


class ElitesConfig(PlannerConfig):
    """Common keys of planners with elites."""

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
            raise ValueError(f"elites {self.elites} of a population of {self.population}")
        return self


class CEMConfig(ElitesConfig):
    """Section of type ``cem``."""

    rate: float = Field(
        0.9, gt=0, le=1, description="fraction by which mean and variance move towards the elites'"
    )
    min_std: float = Field(0.003, ge=0, description="smallest standard deviation")


class MPPIConfig(ElitesConfig):
    """Section of type ``mppi``."""

    inverse_temperature: float = Field(
        0.5,
        ge=0,
        description="inverse temperature: elites have the weight exp(this * score); 0: equal weights",
    )
    std_limits: tuple[float, float] = Field(
        (0.05, 2.0), description="smallest and largest standard deviation"
    )


class Planner(ABC):
    """Search for the best actions in B states in parallel.

    Args:
        config: section of the planner.
        ac_dim: A, action dimensions.
    """

    def __init__(self, config: Any, ac_dim: int) -> None:
        self.config = config
        self.ac_dim = ac_dim

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
    ) -> tuple[Tensor, Plan]:
        """Return the actions (B, A) to execute now, and the plan from which the next search starts.

        Args:
            score: function that scores plans (B, P, H, A).
            plan: result of :meth:`initial_plan` or of the last call.
            explore: add the exploration noise of a rollout.
            generator: source of randomness.
        """


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
        """Return zeros (B,), one per search."""
        return {"searches": torch.zeros(batch_size, device=device)}

    def plan(
        self,
        score: Score,
        plan: Plan,
        *,
        explore: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Plan]:
        """Return the first action of the best plan."""
        searches = plan["searches"]
        shape = (len(searches), self.config.horizon, self.ac_dim)
        best = random_shooting(score, shape, self.config.population, generator, searches.device)
        return best[:, 0], plan


@register("cem", CEMConfig)
class CEM(Planner):
    """Cross-entropy method, started from the last mean."""

    def plan(
        self,
        score: Score,
        plan: Plan,
        *,
        explore: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Plan]:
        """Return the first action of the fitted mean."""
        config = self.config
        mean = cem(
            score,
            plan["mean"],
            torch.full_like(plan["mean"], INITIAL_STD),
            population=config.population,
            elites=config.elites,
            iterations=config.iterations,
            rate=config.rate,
            min_std=config.min_std,
            generator=generator,
        )
        return mean[:, 0], {"mean": shifted(mean)}


@register("mppi", MPPIConfig)
class MPPI(Planner):
    """Model predictive path integral, started from the last mean."""

    def plan(
        self,
        score: Score,
        plan: Plan,
        *,
        explore: bool = False,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Plan]:
        """Return the first action of one elite, drawn by the weights, with noise in rollouts."""
        config = self.config
        found = mppi(
            score,
            plan["mean"],
            torch.full_like(plan["mean"], config.std_limits[1]),
            population=config.population,
            elites=config.elites,
            iterations=config.iterations,
            inverse_temperature=config.inverse_temperature,
            std_limits=config.std_limits,
            generator=generator,
        )
        chosen = draw_class(found.weights.log(), generator)
        action = pick_class(found.elites[:, :, 0], chosen)
        if explore:
            action = draw_normal(action, found.std[:, 0], generator).clamp(-1.0, 1.0)
        return action, {"mean": shifted(found.mean)}


def built(config: PlannerConfig, ac_dim: int) -> Planner:
    """Create the planner of a section of the configuration."""
    return PLANNERS.find(config.type)[0](config, ac_dim)
