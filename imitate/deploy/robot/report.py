"""Report on an episode of a robot: steps, holds, latencies."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from imitate.deploy.robot.limits import LimitCounts
from imitate.system.text import counted


@dataclass
class Report:
    """Record of an episode.

    Attributes:
        steps: number of control steps in which an action was sent.
        late: number of control steps that ended after their period.
        held: number of control steps in which the pose was held, by reason.
        interventions: number of control steps in which a person acted.
        latencies_ms: milliseconds from requesting the observation to having sent the action, for each step.
        gaps: times from one sent action to the next, in control periods.
        limits: number of actions that each limit changed.
        unstamped: true if the robot's observations have no time stamps, so that their age was not checked.
        stop_s: seconds that ``stop()`` took at the end.
        ended_by: reason of the episode's end: ``steps``, an event of the teleoperator, or ``success``.
    """

    steps: int = 0
    late: int = 0
    held: Counter[str] = field(default_factory=Counter)
    interventions: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    limits: LimitCounts = field(default_factory=LimitCounts)
    unstamped: bool = False
    stop_s: float = 0.0
    ended_by: str = "steps"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "steps": self.steps,
            "late": self.late,
            "held": dict(self.held),
            "interventions": self.interventions,
            "limited": dict(self.limits.changed),
            "limited_by_up_to": self.limits.largest,
            "latency_ms": self._percentiles(self.latencies_ms),
            "gap_periods": self._percentiles(self.gaps),
            "long_gaps": sum(gap > 1.2 for gap in self.gaps),
            "freshness_checked": not self.unstamped,
            "ended_by": self.ended_by,
        }

    @staticmethod
    def _percentiles(values: list[float]) -> dict[str, float]:
        if not values:
            return {}
        marks = np.percentile(values, (50, 95, 99, 100))
        return dict(zip(("p50", "p95", "p99", "max"), map(float, marks), strict=True))

    def __str__(self) -> str:
        words = [counted(self.steps, "step")]
        if self.latencies_ms:
            marks = self._percentiles(self.latencies_ms)
            words.append(
                f"latency p50 {marks['p50']:.2f} ms, p95 {marks['p95']:.2f} ms, p99 {marks['p99']:.2f} ms, "
                f"max {marks['max']:.2f} ms"
            )
        words.append(f"{self.late} late")
        words += [f"held {count} ({reason})" for reason, count in self.held.items()]
        if self.interventions:
            words.append(f"{self.interventions} by a person")
        words += [f"{count} limited by {name}" for name, count in self.limits.changed.items()]
        if self.limits.largest:
            words.append(f"actions changed by up to {self.limits.largest:.3g}")
        if self.unstamped:
            words.append("observations have no time stamp, so their age was not checked")
        return ", ".join(words)
