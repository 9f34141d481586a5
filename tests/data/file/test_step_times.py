"""Times of steps against each other and against the rate."""

import re

import numpy as np
import pytest

from imitate.data.file.step_times import CLOCK, TimeArray, contradicted_hz, is_coarse, ticks_of
from imitate.data.formats.convert import convert
from tests.demo_files import episode, write_demos

EVEN = np.arange(6) / 10


@pytest.mark.parametrize(
    ("times", "rate_hz", "faults", "words"),
    [
        (EVEN, 10, [], None),
        (EVEN[:, None] + 1.7e9, 10, [], None),
        ((EVEN * 1e9).astype(np.uint64), 10, [], None),  # nanoseconds
        (EVEN * 1.001, 10, [], None),  # 29.97 for 30
        (EVEN + [0, 0.02, -0.02, 0.01, 0, 0], 10, [], None),
        (1.7e9 + EVEN.astype(np.float32), 10, [], None),
        (np.float32(1.7e9) + EVEN.astype(np.float32), 10, [], None),  # no type for such times
        (EVEN / 2, None, [], None),
        (EVEN / 2, 10, [], None),  # a phase, from 0 to 1
        (EVEN / 2 + 3, 10, [], "0.05 apart .20 Hz., but the rate is 10 Hz"),
        ([0, 0.1, 0.2, 0.4, 0.5, 0.6], 10, [3], "1 episode .0.2 is followed by 0.4 in"),
        ([0, 0.1, 0.1, 0.2, 0.3, 0.4], 10, [2], "0.1 is followed by 0.1"),
        ([0, 0.1, 0.2, 0.1, 0.2, 0.3], 10, [3], "0.2 is followed by 0.1"),
        ([0, 0.1, np.nan, 0.3, 0.4, 0.5], 10, [2, 3], "0.1 is followed by nan"),
        (np.uint8([5, 4, 3, 2, 1, 0]), 10, [1, 2, 3, 4, 5], "5 is followed by 4"),
    ],
)  # fmt: skip
def test_what_contradicts_is_named(times, rate_hz, faults, words):
    clock = TimeArray(rate_hz)
    assert clock.see(np.asarray(times), "'demo_3'").tolist() == faults
    doubt = clock.doubt()
    assert (doubt is None) if words is None else re.search(words, str(doubt))


@pytest.mark.parametrize(
    ("times", "interval", "back", "uneven"),
    [
        ([0, 20, 40, 70, 80], 20, [], []),  # half of the interval more or less
        ([0, 20, 40, 71, 80], 20, [], [3, 4]),
        ([0, 1, 3], 1, [], [2]),  # the smaller one of two in the middle
        ([[0, 9], [1, 0], [2, 9]], 1, [], []),
        ([5, 3, 1], -2, [1, 2], []),
        ([3, 3, 3], 0, [1, 2], []),
        ([2**60, 2**60 + 1, 2**60 + 3], 1, [], [2]),  # more digits than float64 has
    ],
)
def test_intervals(times, interval, back, uneven):
    found = ticks_of(np.asarray(times))
    assert (found.interval, found.back.tolist(), found.uneven.tolist()) == (interval, back, uneven)


@pytest.mark.parametrize(
    ("times", "rate_hz", "coarse"),
    [
        (np.float32([0, -(2.0**24)]), 0.25, False),  # neighbours are 2 apart: half a step
        (np.float32([0, -(2.0**24)]), 0.26, True),
        (np.float64([0, 2.0**24]), 100, False),
        (np.float32([np.inf, 2.0**24]), 100, False),
        (np.int32([0, 2**24]), 100, False),
    ],
)
def test_types_that_cannot_tell_steps_apart(times, rate_hz, coarse):
    assert is_coarse(times, rate_hz) == coarse


@pytest.mark.parametrize(
    ("interval", "hz"),
    [
        *((unit, None) for unit in (0.1, 100.0, 100e3, 100e6)),  # s, ms, us, ns
        *((0.109, None), (0.091, None), (0.111, 1 / 0.111), (0.089, 1 / 0.089)),
        *((0.0, None), (-1.0, None), (np.nan, None)),
    ],
)
def test_rates_that_contradict_10_hz(interval, hz):
    assert contradicted_hz(interval, 10) == hz


@pytest.mark.parametrize(
    ("episodes", "rate_hz", "doubt"),
    [
        ([[0, 0.5, 1.0]], 10, None),  # a phase
        ([[0, 0.75, 1.5]], 10, "steps of 'e0' are 0.75 apart (1.333 Hz), but the rate is 10 Hz: one"),
        ([[0, 2.0, 4.0], [0, 0.25, 0.5]], 10, "steps of 'e0' are 2 apart (0.5 Hz), but the rate is 10 Hz: one"),
        ([[0, 0]], None, None),  # two steps have no usual interval
        ([[True, False, True]], None, None),
        ([[0, 0, 1], [0, 1, 2], [5, 5, 6]], None,
         "time does not run evenly in 2 episodes (0 is followed by 0 in 'e0'): steps were lost"),
        ([np.float32(2.0**24) + np.float32([0, 0, 2])], None,
         "time does not run evenly in 1 episode (16777216 is followed by 16777216 in 'e0'): steps"),
    ],
)  # fmt: skip
def test_doubts_name_the_first_episode(episodes, rate_hz, doubt):
    clock = TimeArray(rate_hz)
    for number, times in enumerate(episodes):
        clock.see(np.asarray(times), f"'e{number}'")
    found = clock.doubt()
    assert found is None if doubt is None else found.startswith(doubt)


def test_a_conversion_says_it_of_each_format(tmp_path):
    times = np.arange(7)[:, None] / 20 + 2
    made = [episode(7, {"pos": times, "timestamp": times}, np.zeros((7, 2), np.float32), "timeout")]
    report = convert(write_demos(tmp_path / "a.hdf5", made, control_freq=10), tmp_path / "b.hdf5")
    assert "20 Hz" in report.doubts["obs/timestamp"]


def test_names_of_times():
    yes = ["obs/time", "timestamp", "obs/robot/time_stamps", "clock", "obs/timestamp_ns"]
    no = ["obs/lifetime", "timeouts", "obs/times_seen", "obs/pos"]
    assert [name for name in yes + no if CLOCK.search(name)] == yes
