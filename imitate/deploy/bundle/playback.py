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
        actions: (K, A); with ensembling the weighted sums of what was predicted for this step and those after it.
        position: of the next action; -1 if there is none. Unused with ensembling.
        weight: (K,) sums of the weights.
        count: (K,) numbers of predictions.
    """

    actions: Actions
    position: int = -1
    weight: Actions | None = None
    count: Actions | None = None


@dataclass(frozen=True)
class Execution:
    """How chunks become actions; the attributes are those of :class:`imitate.algo.base.execution.ChunkExecution`.

    Attributes:
        size: K, actions in a chunk.
        execute: steps from one prediction to the next.
        temporal_ensemble: m of the weights exp(-m i), i = 0 for the oldest prediction; None: a receding horizon.
        latency: steps until a prediction is there.
    """

    size: int
    execute: int = 1
    temporal_ensemble: float | None = None
    latency: int = 0

    def start(self, action_dim: int) -> Plan:
        """Return the plan of an episode that begins, which is also that after a plan was discarded."""
        zeros = np.zeros(self.size)
        return Plan(np.zeros((self.size, action_dim)), weight=zeros, count=zeros)

    def needs_chunk(self, plan: Plan) -> bool:
        """Return True where the next action has to be predicted."""
        ensembles = self.temporal_ensemble is not None
        return ensembles or not 0 <= plan.position < self.execute

    def step(self, plan: Plan, predict: Callable[[], Actions]) -> tuple[Actions, Plan]:
        """Take one step.

        Args:
            plan: from :meth:`start` or the step before.
            predict: gives a chunk (K, A); called where one is needed.

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
        """A new plan: what is left of the old one during the latency, then the chunk."""
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
    """``x`` (K, ...) one step on; zeros for the step that comes into view."""
    return np.concatenate([x[1:], np.zeros_like(x[:1])])
