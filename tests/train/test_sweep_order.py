"""Order of the runs of a sweep after an interruption: it follows from the runs' folders."""

import json

import pytest

from imitate.train.halving import Halving
from imitate.train.sweep_order import ByHalving, InTurn
from imitate.train.sweep_state import read_run


@pytest.fixture
def place(tmp_path):
    """Writes the folder of a run: success rates by epoch, and the status in results.json; None: there is none."""

    def write(name, rates, status):
        folder = tmp_path / name / "20260101000000"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        lines = [
            {"kind": "rollout", "epoch": epoch, "Rollout/Success_Rate": rate}
            for epoch, rate in rates.items()
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        if status is not None:
            (folder / "results.json").write_text(json.dumps({"status": status}))

    return write


def states(tmp_path, *names):
    return [read_run(tmp_path / name, {}) for name in names]


def test_in_turn_what_is_not_over_is_trained(place, tmp_path):
    place("a", {1: 0.1}, "finished")
    place("b", {1: 0.1}, "paused at epoch 1 of 9")
    place("c", {1: 0.1}, "stopped early: success_rate reached the target 0.1")
    place("d", {1: 0.1}, None)
    order = InTurn(states(tmp_path, "a", "b", "c", "d", "e"))
    assert [order.next() for _ in range(4)] == [("b", None), ("d", None), ("e", None), None]


def test_runs_that_were_cut_on_their_way_to_a_rung_come_first(place, tmp_path):
    place("a", {1: 0.9}, "paused at epoch 1 of 9")  # rests on the first rung
    place("b", {1: 0.2, 2: 0.3}, None)  # was on its way from the first to the second
    place("c", {1: 0.4}, None)  # had not paused yet: its evaluation may be missing
    place("d", {1: 0.1}, "failed: the loss went bad")
    names = ("a", "b", "c", "d", "e", "f")
    order = ByHalving(Halving(), states(tmp_path, *names), 9, tmp_path)
    assert order.ladder.reached == {"a": [0.9], "b": [0.2]}
    assert [order.next() for _ in range(3)] == [("b", 3), ("c", 1), ("d", 1)]
    # c arrives: of three on the first rung the best, a, goes on; then those that have not begun.
    place_again(tmp_path, "c", "paused at epoch 1 of 9")
    order.ended(*states(tmp_path, "c"))
    assert [order.next() for _ in range(4)] == [("a", 3), ("e", 1), ("f", 1), None]


def place_again(tmp_path, name, status):
    (folder,) = (tmp_path / name).iterdir()
    (folder / "results.json").write_text(json.dumps({"status": status}))


def test_a_run_that_fails_is_compared_no_longer(place, tmp_path):
    for name, rate in (("a", 0.9), ("b", 0.5), ("c", 0.1)):
        place(name, {1: rate}, "paused at epoch 1 of 3")
    order = ByHalving(Halving(), states(tmp_path, "a", "b", "c"), 3, tmp_path)
    assert order.next() == ("a", None)  # the last rung has all epochs
    place_again(tmp_path, "a", "failed: the loss went bad")
    order.ended(*states(tmp_path, "a"))
    assert order.next() == ("b", None)  # nobody has all epochs yet
    assert order.final(read_run(tmp_path / "c", {})).status == (
        "pruned at epoch 1: success_rate 0.1 is rank 2 of 2 there, of which 0 went on"
    )


def test_a_finished_run_stands_on_every_rung(place, tmp_path):
    place("a", {4: 0.7, 9: 0.8}, "finished")  # it was first evaluated at epoch 4
    place("b", {1: 0.6}, "paused at epoch 1 of 9")
    place("c", {1: 0.5}, "paused at epoch 1 of 9")
    order = ByHalving(Halving(), states(tmp_path, "a", "b", "c"), 9, tmp_path)
    assert order.ladder.reached["a"] == [0.7, 0.7, 0.8]
    assert order.next() is None
