"""Asynchronous successive halving of the runs of a sweep.

ASHA (Li et al., A System for Massively Parallel Hyperparameter Tuning, MLSys 2020, arXiv:1810.05934, algorithm 2): runs
train up to rungs, whose epochs grow by a constant factor; the best 1/reduction of the runs at a rung continue to the
next. A free worker never waits for a rung to fill: it promotes a run that is good enough now, or begins another.

Departure: the runs are given, not sampled endlessly. If all have begun and none may be promoted, the best run of the
    highest rung continues, until one run has trained all its epochs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

METRICS = {
    "success_rate": ("rollout", "Rollout/Success_Rate", 1.0),
    "return": ("rollout", "Rollout/Return", 1.0),
    "valid_loss": ("epoch", "Valid/Loss", -1.0),
    "train_loss": ("epoch", "Train/Loss", -1.0),
}
"""Kind and key of a line of ``metrics.jsonl``, and the sign by which larger is better."""


@dataclass(frozen=True)
class Halving:
    """Settings of successive halving.

    Attributes:
        metric: one of :data:`METRICS`.
        reduction: one of this many runs continues to the next rung, which has this many times the epochs.
        first_epochs: epochs of the first rung, which every run trains.
    """

    metric: str = "success_rate"
    reduction: int = 3
    first_epochs: int = 1

    def rungs(self, num_epochs: int) -> tuple[int, ...]:
        """Return the epochs at which runs are compared, and ``num_epochs``."""
        rungs, epochs = [], self.first_epochs
        while epochs < num_epochs:
            rungs.append(epochs)
            epochs *= self.reduction
        return (*rungs, num_epochs)

    def value(self, records: Sequence[Mapping[str, Any]], epoch: int) -> float | None:
        """Return the latest value up to an epoch, negated if lower is better; None if there is none.

        Args:
            records: lines of ``metrics.jsonl``.
            epoch: epoch of the rung.
        """
        kind, key, sign = METRICS[self.metric]
        found = None
        for record in records:
            if record.get("kind") == kind and key in record and record["epoch"] <= epoch:
                value = record[key]
                found = -math.inf if value is None else sign * float(value)
        return found

    def shown(self, value: float) -> str:
        """Format a value with the metric's name and sign."""
        sign = METRICS[self.metric][2]
        return f"{self.metric} {sign * value:.4g}"


@dataclass
class Ladder:
    """State of the halving: the rungs that runs have reached, and the choice of the next run.

    Attributes:
        num_rungs: number of rungs; a run at the last one has trained all its epochs.
        reduction: see :class:`Halving`.
        reached: values of each run at the rungs that it has reached, from the first; larger is better.
        climbing: runs that are training now.
    """

    num_rungs: int
    reduction: int
    reached: dict[str, list[float]] = field(default_factory=dict)
    climbing: set[str] = field(default_factory=set)

    def ranked(self, rung: int) -> list[str]:
        """Return the runs that have reached a rung, best first; ties keep the order of arrival."""
        there = [name for name, values in self.reached.items() if len(values) > rung]
        return sorted(there, key=lambda name: -self.reached[name][rung])

    def next(self, waiting: Sequence[str]) -> tuple[str, int] | None:
        """Return the next run and the index of the rung up to which it trains, or None if no run can start now.

        Args:
            waiting: runs that have not begun, in their order.
        """
        for rung in reversed(range(self.num_rungs - 1)):
            ranked = self.ranked(rung)
            for name in ranked[: len(ranked) // self.reduction]:
                if self._rests_at(name, rung):
                    return name, rung + 1
        if waiting:
            return waiting[0], 0
        if not self.climbing and not self.ranked(self.num_rungs - 1):
            for rung in reversed(range(self.num_rungs - 1)):
                if ranked := self.ranked(rung):
                    return ranked[0], rung + 1
        return None

    def place(self, name: str) -> tuple[int, int, int]:
        """Return the last rung that a run has reached, its rank there (from 1), and the number of runs there."""
        rung = len(self.reached[name]) - 1
        ranked = self.ranked(rung)
        return rung, ranked.index(name) + 1, len(ranked)

    def _rests_at(self, name: str, rung: int) -> bool:
        return len(self.reached[name]) == rung + 1 and name not in self.climbing
