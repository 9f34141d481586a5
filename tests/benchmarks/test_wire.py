"""Benchmarks of the wire and of faults run, and tell good from bad."""

import re

import numpy as np
import pytest

from benchmarks import faults, wire
from benchmarks.row import table
from benchmarks.wire_robot import StandingRobot


def test_medians_and_ratios_are_of_the_same_round():
    one = wire.Contestant("one", {}, {"floats": [[1, 2, 9], [4, 4, 4], [8, 8, 8]]})
    other = wire.Contestant("other", {}, {"floats": [[1, 1, 1], [8, 8, 8], [8, 8, 8]]})
    assert one.p50("floats") == 4
    assert one.ratio("floats", other) == 1.0  # of 2, 0.5 and 1


def test_rounds_alternate_and_the_first_is_not_counted(monkeypatch):
    monkeypatch.setattr(wire, "TRIPS", {"floats": 2})
    order = []

    def contestant(name, took):
        def trips(n):
            order.append(name)
            return [took] * n

        return wire.Contestant(name, {"floats": trips})

    rows = wire.round_trips([contestant("ours", 1.0), contestant("openpi", 2.0)], rounds=2)
    assert order == ["ours", "openpi", "openpi", "ours", "ours", "openpi"]
    assert [row.value for row in rows] == [1.0, 2.0, 0.5]
    assert rows[2].met
    header, _, first, *_ = table("wire", rows).splitlines()
    assert "robomimic" not in header
    assert len(header) == len(first)
    assert "n = 2 x 2" in rows[0].note


def test_our_round_trip_and_a_crowd_are_measured(monkeypatch):
    from contextlib import ExitStack

    with ExitStack() as stack:
        monkeypatch.setattr(wire, "TRIPS", {"floats": 5})
        assert len(wire.ours(stack).trips["floats"](5)) == 5
    (row,) = wire.crowd(None, clients=3, calls=5, seconds=0.01)
    assert row.unit == "predictions" and row.value > 0
    (row,) = wire.limit_filter(50)
    assert row.value > 0


def scene():
    found = faults.Scene("fault", lambda: None)
    found.at = 10.0
    return found


def test_an_action_after_the_stop_is_found():
    bad = scene()
    bad.robot.calls = [
        (9.0, "send"),
        (10.1, "send"),
        (10.2, "hold"),
        (10.5, "stop"),
        (10.6, "send"),
    ]
    outcome = bad.outcome("told")
    assert (outcome.hold_s, outcome.stop_s) == (pytest.approx(0.2), pytest.approx(0.5))
    assert (outcome.sent, outcome.sent_after) == (1, 1)
    assert outcome.row == ["fault", "0.20", "0.50", "1", "1", "told"]


def test_a_robot_that_goes_on_rests_at_the_end_only():
    good = scene()
    good.robot.calls = [(10.1, "send"), (15.0, "stop")]
    assert good.outcome(faults.WENT_ON).row == ["fault", "", "", "", "", "goes on"]


def test_a_fault_is_provoked_and_told(capsys, monkeypatch):
    assert faults.main(["--only", "NaN in actions"]) == 0
    table = capsys.readouterr().out
    assert re.search(r"\| NaN in actions \|  \| \d+\.\d+ \|", table)
    assert "not finite" in table


def test_the_robot_notes_its_calls():
    robot = StandingRobot({"state": (2,), "front": (4, 4, 3)}, 2)
    first, second = robot.observe().values, robot.observe().values
    assert not np.array_equal(first["front"], second["front"])
    robot.send(np.zeros(2))
    robot.stop()
    assert [name for _, name in robot.calls] == ["observe", "observe", "send", "stop"]
    assert len(robot.times("stop")) == 1
