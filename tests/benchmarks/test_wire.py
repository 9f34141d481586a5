"""The benchmark of round trips runs, and distinguishes good from bad."""

from benchmarks import wire
from benchmarks.row import table


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
    rows = wire.slow_policy(4, seconds=0.0, blocks=1)
    assert [row.unit for row in rows] == ["of 4"] * 2
    (row,) = wire.limit_filter(50)
    assert row.value > 0
