"""Record of an episode in JSON and in words."""

from collections import Counter

from imitate.deploy.robot.limits import LimitCounts
from imitate.deploy.robot.report import Report


def test_an_empty_report():
    assert Report().to_dict() == {
        "steps": 0,
        "late": 0,
        "held": {},
        "interventions": 0,
        "limited": {},
        "limited_by_up_to": 0.0,
        "latency_ms": {},
        "gap_periods": {},
        "long_gaps": 0,
        "freshness_checked": True,
        "ended_by": "steps",
    }
    assert str(Report()) == "0 steps, 0 late"
    assert Report().stop_s == 0.0


def test_a_full_report():
    report = Report(
        steps=2,
        late=1,
        held=Counter(stale=3),
        interventions=4,
        latencies_ms=[float(n) for n in range(101)],
        gaps=[1.0, 1.1, 1.2, 1.25, 2.0],
        limits=LimitCounts(9, Counter(speed=5), 0.25),
        unstamped=True,
        ended_by="success",
    )
    found = report.to_dict()
    assert found["latency_ms"] == {"p50": 50.0, "p95": 95.0, "p99": 99.0, "max": 100.0}
    assert found["gap_periods"]["max"] == 2.0
    assert found["long_gaps"] == 2
    assert found["freshness_checked"] is False
    assert (found["held"], found["limited"]) == ({"stale": 3}, {"speed": 5})
    assert str(report) == (
        "2 steps, latency p50 50.00 ms, p95 95.00 ms, p99 99.00 ms, max 100.00 ms, 1 late, "
        "held 3 (stale), 4 by a person, 5 limited by speed, actions changed by up to 0.25, "
        "observations have no time stamp, so their age was not checked"
    )
