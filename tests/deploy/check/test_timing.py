"""Calls against the control period, with literal times."""

import numpy as np
import pytest

from imitate.deploy.check.deploy_check import latency_findings, latency_of


def at(late, of=40):
    """Calls of 1 ms, and of 60 ms at some places."""
    calls = np.ones(of)
    calls[list(late)] = 60.0
    return calls


@pytest.mark.parametrize(
    ("late", "levels"),
    [
        ([], []),
        ([5], ["warning"]),
        ([0, 10, 20, 30], ["warning"]),
        ([4, 9, 13], ["problem"]),  # three of ten, as the control loop counts
        ([4, 9, 14], ["warning"]),
        ([37, 38, 39], ["problem"]),
    ],
)
def test_three_late_of_ten_are_a_problem(late, levels):
    found = latency_findings(at(late), 20.0)
    assert [finding.level.value for finding in found] == levels
    assert latency_findings(at(late), 10.0) == []  # 100 ms are enough


def test_fewer_calls_than_the_loop_looks_at():
    assert latency_findings(np.array([60.0, 60.0]), 20.0)[0].level.value == "warning"
    assert latency_findings(np.full(3, 60.0), 20.0)[0].level.value == "problem"
    assert latency_findings(np.array([]), 20.0) == []


def test_quantiles():
    told = latency_of(np.arange(101.0))
    assert told == {"p50": 50.0, "p95": 95.0, "p99": 99.0, "max": 100.0}
