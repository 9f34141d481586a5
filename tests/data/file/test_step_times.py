"""Times of steps against each other and against the rate."""

import re

import numpy as np
import pytest

from imitate.data.file.step_times import CLOCK, TimeArray
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


def test_a_conversion_says_it_of_each_format(tmp_path):
    times = np.arange(7)[:, None] / 20 + 2
    made = [episode(7, {"pos": times, "timestamp": times}, np.zeros((7, 2), np.float32), "timeout")]
    report = convert(write_demos(tmp_path / "a.hdf5", made, control_freq=10), tmp_path / "b.hdf5")
    assert "20 Hz" in report.doubts["obs/timestamp"]


def test_names_of_times():
    yes = ["obs/time", "timestamp", "obs/robot/time_stamps", "clock", "obs/timestamp_ns"]
    no = ["obs/lifetime", "timeouts", "obs/times_seen", "obs/pos"]
    assert [name for name in yes + no if CLOCK.search(name)] == yes
