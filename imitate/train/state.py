"""State of a run: its counters, saved in checkpoints, and its history, read from the metrics file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from imitate.train.outcomes import KEPT

PAUSED = "paused"
"""First word of a run's status if it was paused on request after an epoch."""


@dataclass
class TrainState:
    """Counters of a run.

    Attributes:
        step: number of updates done.
        epoch: number of completed epochs.
        skipped_batches: number of batches skipped by rollbacks; update k learns from batch k + skipped_batches.
        rollbacks: number of times that the run was rolled back to an earlier checkpoint.
        wall_s, cpu_s: wall-clock and CPU seconds spent in training, without evaluation in this process.
    """

    step: int = 0
    epoch: int = 0
    skipped_batches: int = 0
    rollbacks: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, for the checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> TrainState:
        """Read the counters from a checkpoint's train_state; ignore its other entries."""
        known = {name: state[name] for name in cls.__dataclass_fields__ if name in state}
        for name, value in known.items():
            wanted = (int, float) if name.endswith("_s") else (int,)
            if type(value) not in wanted or not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value!r}; wanted a finite number of at least 0")
        return cls(**known)


@dataclass
class History:
    """Best measurements and early stopping, computed from the records in `metrics.jsonl`, in order.

    The best evaluation (``best``: success rate, return, epoch) has the highest success rate, and the highest return of
    those. If the environment reports no success the rate is None, and the return alone decides. An evaluation that
    keeps all bounds of named rewards is better than any that does not.

    A resumed run adds all records again, so checkpoints need not contain the history, and an evaluation that ended
    after the last save is not lost.
    """

    early_stopping: Any
    best_valid: tuple[float, int] | None = None
    best_return: tuple[float, int] | None = None
    best: tuple[float | None, float, int] | None = None
    rollouts: dict[int, dict[str, Any]] = field(default_factory=dict)
    last_epoch: dict[str, Any] = field(default_factory=dict)
    _rank: tuple[float, float, float] = (-math.inf, -math.inf, -math.inf)
    _stall: int = 0
    _reached: bool = False

    def add(self, record: Mapping[str, Any]) -> set[str]:
        """Add one record; return in which of "valid", "return" and "best" it is the best so far."""
        if record.get("kind") == "rollout":
            return self._add_rollout(record)
        self.last_epoch = dict(record)
        if "Valid/Loss" in record:
            return self._add_valid(_number(record["Valid/Loss"]), int(record["epoch"]))
        return set()

    @property
    def evaluation_s(self) -> float:
        """Wall-clock seconds of all evaluations, including those before a resumption."""
        return sum(float(record.get("Timing/Rollout_s") or 0) for record in self.rollouts.values())

    @property
    def stop_reason(self) -> str | None:
        """Reason to stop training now (early stopping), or None."""
        settings = self.early_stopping
        if not settings.enabled:
            return None
        if self._reached:
            return f"{settings.metric} reached the target {settings.target:g}"
        if self._stall >= settings.patience:
            unknown = settings.metric == "success_rate" and self.best and self.best[0] is None
            metric = "return" if unknown else settings.metric
            return f"{metric} has not improved for {self._stall} measurements"
        return None

    def _add_valid(self, loss: float, epoch: int) -> set[str]:
        improved = loss < (math.inf if self.best_valid is None else self.best_valid[0])
        if improved:
            self.best_valid = (loss, epoch)
        if self.early_stopping.metric == "valid_loss":
            target = self.early_stopping.target
            self._watch(improved, target is not None and loss <= target)
        return {"valid"} if improved else set()

    def _add_rollout(self, record: Mapping[str, Any]) -> set[str]:
        epoch = int(record["epoch"])
        rate = record.get("Rollout/Success_Rate")
        mean_return = _number(record.get("Rollout/Return"), worst=-math.inf)
        self.rollouts[epoch] = dict(record)
        best: set[str] = set()
        if mean_return > (-math.inf if self.best_return is None else self.best_return[0]):
            self.best_return = (mean_return, epoch)
            best.add("return")
        kept = float(record.get(KEPT, 1.0))
        rank = (kept, -1.0 if rate is None else rate, mean_return)
        improved = rank > self._rank if rate is None else rank[:2] > self._rank[:2]
        # If results are equal the later checkpoint counts, because it was trained for longer.
        if rank >= self._rank:
            self.best, self._rank = (rate, mean_return, epoch), rank
            best.add("best")
        if self.early_stopping.metric == "success_rate":
            target = self.early_stopping.target
            self._watch(improved, None not in (target, rate) and rate >= target)
        return best

    def _watch(self, improved: bool, reached: bool) -> None:
        self._stall = 0 if improved else self._stall + 1
        self._reached = self._reached or reached


def _number(value: float | None, worst: float = math.inf) -> float:
    """Return a number of a record, or `worst` if it is not finite (null in the metrics file)."""
    return worst if value is None or not math.isfinite(value) else float(value)
