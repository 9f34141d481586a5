import pytest

from imitate.train import time_left
from imitate.train.time_left import Forecast


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time_left.time, "perf_counter", lambda: now[0])
    return now


def lines(clock, seconds, steps, **settings):
    """What is said in so many steps of a training of 1000."""
    found = Forecast(1000, "updates", **settings)
    said = []
    for step in range(1, steps + 1):
        clock[0] += 30.0 if step == 1 else seconds  # the first step is slow
        said.append(found.line(step))
    return [line for line in said if line is not None]


def test_said_once_after_a_few_updates_without_the_first(clock):
    (line,) = lines(clock, 5.0, 20)
    assert line.startswith("about 1 h 23 min for this training: 996 updates at 0.2 per s")


def test_fast_updates_are_measured_for_longer_and_short_trainings_not_told_of(clock):
    assert lines(clock, 0.01, 500) == []
    (line,) = lines(clock, 0.5, 20)
    assert line.startswith("about 8 min 18 s")


def test_slow_images_are_given_advice(clock):
    (slow,) = lines(clock, 5.0, 20, images_on_cpu=True)
    assert "imitate config init" in slow
    (fast,) = lines(clock, 0.5, 20, images_on_cpu=True)
    assert "config init" not in fast


def test_slow_updates_on_images_are_given_advice_in_short_trainings_too(clock):
    said = []
    found = Forecast(100, "updates", images_on_cpu=True)
    for step in range(1, 8):
        clock[0] += 7.5
        said.append(found.line(step))
    (line,) = [line for line in said if line is not None]
    assert line.startswith("about 12 min")
    assert "imitate config init" in line
