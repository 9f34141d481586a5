"""Execution of action chunks in numpy, for one robot: the same as :mod:`imitate.algo.base.execution`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Actions = NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """Planned actions; never changed in place.

    Attributes:
        actions: (K, A); with ensembling, weighted sums of the predictions for this step and later ones.
        position: index of the next action; -1 if there is none. Unused with ensembling.
        weight: (K,) sum of the weights of each step.
        count: (K,) number of predictions of each step.
    """

    actions: Actions
    position: int = -1
    weight: Actions | None = None
    count: Actions | None = None


@dataclass(frozen=True)
class Execution:
    """Execution of chunks; the attributes are those of :class:`imitate.algo.base.execution.ChunkExecution`.

    Attributes:
        size: K, actions in a chunk.
        execute: steps from one prediction to the next.
        temporal_ensemble: m in the weights exp(-m i), where i = 0 is the oldest prediction; None for a receding
            horizon.
        latency: control steps until a prediction is available.
    """

    size: int
    execute: int = 1
    temporal_ensemble: float | None = None
    latency: int = 0

    def start(self, action_dim: int) -> Plan:
        """Return the empty plan at the beginning of an episode or after a plan was discarded."""
        zeros = np.zeros(self.size)
        return Plan(np.zeros((self.size, action_dim)), weight=zeros, count=zeros)

    def needs_chunk(self, plan: Plan) -> bool:
        """Return True if a new chunk is needed for the next action."""
        ensembles = self.temporal_ensemble is not None
        return ensembles or not 0 <= plan.position < self.execute

    def step(self, plan: Plan, predict: Callable[[], Actions]) -> tuple[Actions, Plan]:
        """Take one step.

        Args:
            plan: plan from :meth:`start` or the previous step.
            predict: returns a chunk (K, A); called if one is needed.

        Returns:
            (K, A) the actions from this step on, the last one repeated beyond the plan; and the next plan.
        """
        if self.temporal_ensemble is not None:
            return self._ensembled(plan, predict(), self.temporal_ensemble)
        actions, position = plan.actions, plan.position
        if self.needs_chunk(plan):
            actions, position = self._replanned(plan, predict()), 0
        steps = np.minimum(np.arange(position, position + self.size), self.size - 1)
        return actions[steps], Plan(actions, position + 1, plan.weight, plan.count)

    def _replanned(self, old: Plan, chunk: Actions) -> Actions:
        """Return a new plan: the rest of the old one during the latency, then the chunk."""
        if self.latency == 0 or old.position < 0:
            return chunk
        steps = np.minimum(np.arange(self.latency) + old.position, self.size - 1)
        return np.concatenate([old.actions[steps], chunk[self.latency :]])

    def _ensembled(self, plan: Plan, chunk: Actions, decay: float) -> tuple[Actions, Plan]:
        assert plan.weight is not None
        assert plan.count is not None
        weight = np.exp(-decay * plan.count)
        total = plan.actions + weight[:, None] * chunk
        weights = plan.weight + weight
        after = Plan(_shifted(total), -1, _shifted(weights), _shifted(plan.count + 1.0))
        return total / weights[:, None], after


def _shifted(x: Actions) -> Actions:
    """Shift ``x`` (K, ...) by one step; the last entry becomes zero."""
    return np.concatenate([x[1:], np.zeros_like(x[:1])])
