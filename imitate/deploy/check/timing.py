"""Compare the durations of a policy's calls with the control period."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.check.finding import Finding, Level
from imitate.deploy.loop import Safety

MARKS = {"p50": 50, "p95": 95, "p99": 99, "max": 100}


def latency_of(calls_ms: NDArray[np.float64]) -> dict[str, float]:
    """Return quantiles of the calls' durations: ``p50``, ``p95``, ``p99``, ``max``."""
    return {name: float(np.percentile(calls_ms, mark)) for name, mark in MARKS.items()}


def latency_findings(
    calls_ms: NDArray[np.float64], rate_hz: float, safety: Safety | None = None
) -> list[Finding]:
    """Compare calls with the control period.

    Args:
        calls_ms: (N,) durations in order.
        rate_hz: control steps per second.
        safety: settings with the number of late steps that ends an episode.
    """
    rules = safety or Safety()
    period = 1e3 / rate_hz
    late = calls_ms > period
    of = min(rules.late_of, len(late))
    most = int(np.convolve(late, np.ones(of), mode="valid").max()) if of else 0
    told = f"the period at {rate_hz:g} Hz is {period:.3g} ms"
    if rules.late and most >= rules.late:
        words = (
            f"{most} of {of} successive calls take longer than a control step ({told}): imitate run stops then; use "
            "--async, a smaller policy, or demonstrations at a lower rate"
        )
        return [Finding(Level.problem, "slow", "", words)]
    if late.any():
        words = f"{late.mean():.1%} of the calls take longer than a control step ({told})"
        return [Finding(Level.warning, "slow", "", words)]
    return []
