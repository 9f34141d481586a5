"""Asynchronous halving: decisions worked out by hand, a sweep that follows them, and its order when it is resumed."""

import json
import shutil

import pytest

from imitate.errors import ConfigError
from imitate.train.sweep.state import ByHalving, Halving, InTurn, Ladder, read_run
from imitate.train.sweep.sweep import Resources, Sweep
from imitate.train.sweep.work import SweepWork
from tests.refusals import refused

from .conftest import records
from .test_sweep import tree_of, write_config


def test_rungs_are_a_factor_apart_and_end_with_the_last_epoch():
    assert Halving(reduction=3, first_epochs=1).rungs(27) == (1, 3, 9, 27)
    assert Halving(reduction=3, first_epochs=2).rungs(20) == (2, 6, 18, 20)
    assert Halving(reduction=2, first_epochs=5).rungs(5) == (5,)


def test_values_are_the_newest_up_to_the_rung_and_more_is_better():
    lines = [
        {"kind": "epoch", "epoch": 1, "Valid/Loss": 0.5, "Train/Loss": 0.9},
        {"kind": "rollout", "epoch": 1, "Rollout/Success_Rate": 0.25, "Rollout/Return": -3.0},
        {"kind": "epoch", "epoch": 2, "Valid/Loss": None, "Train/Loss": 0.7},
        {"kind": "rollout", "epoch": 3, "Rollout/Success_Rate": 0.75, "Rollout/Return": -1.0},
    ]
    for metric, epoch, value in (
        *(("success_rate", 2, 0.25), ("success_rate", 3, 0.75), ("return", 3, -1.0)),
        *(("valid_loss", 1, -0.5), ("valid_loss", 2, -float("inf"))),  # it was not finite
        *(("train_loss", 9, -0.7), ("success_rate", 0, None)),
    ):
        assert Halving(metric).value(lines, epoch) == value


def climb(ladder, name, value):
    """A run that trains reaches its next rung."""
    ladder.climbing.discard(name)
    ladder.reached.setdefault(name, []).append(value)


def take(ladder, waiting):
    """The next decision, carried out."""
    found = ladder.next(waiting)
    if found is not None:
        ladder.climbing.add(found[0])
        if waiting and found[0] == waiting[0]:
            waiting.pop(0)
    return found


def test_decisions_as_results_come():
    """Two workers, reduction 3, rungs 1, 3, 9; at each result the decision by algorithm 2 of the paper."""
    ladder, waiting = Ladder(num_rungs=3, reduction=3), list("abcdefghi")
    assert [take(ladder, waiting), take(ladder, waiting)] == [("a", 0), ("b", 0)]
    climb(ladder, "b", 0.2)  # 1 of 3 would need three runs on the rung
    assert take(ladder, waiting) == ("c", 0)
    climb(ladder, "a", 0.1)
    assert take(ladder, waiting) == ("d", 0)
    climb(ladder, "c", 0.15)  # three on the rung: the best of them, b, goes on; d trains
    assert take(ladder, waiting) == ("b", 1)
    climb(ladder, "d", 0.9)  # four: still one may go on, and the best one, d, has not
    assert take(ladder, waiting) == ("d", 1)
    climb(ladder, "b", 0.3)  # one on rung 1: none of it goes on; rung 0: d, its best, is on its way
    assert take(ladder, waiting) == ("e", 0)
    climb(ladder, "d", 0.95)
    assert take(ladder, waiting) == ("f", 0)
    climb(ladder, "e", 0.05)  # five on rung 0
    assert take(ladder, waiting) == ("g", 0)
    climb(ladder, "f", 0.6)  # six: two may go on: d has, f has not
    assert take(ladder, waiting) == ("f", 1)
    climb(ladder, "f", 0.5)  # three on rung 1: d, f, b: the best goes to the top
    assert take(ladder, waiting) == ("d", 2)
    climb(ladder, "g", 0.0)
    assert [take(ladder, waiting), ladder.climbing] == [("h", 0), {"d", "h"}]
    climb(ladder, "h", 0.0)
    assert take(ladder, waiting) == ("i", 0)
    climb(ladder, "i", 0.0)  # nine on rung 0: d, f, b may go on, and all have
    assert take(ladder, waiting) is None
    climb(ladder, "d", 0.97)
    assert take(ladder, waiting) is None
    assert (ladder.place("f"), ladder.place("g")) == ((1, 2, 3), (0, 7, 9))


def test_one_run_gets_all_its_epochs_however_few_there_are():
    ladder, waiting = Ladder(num_rungs=3, reduction=3), ["a", "b"]
    take(ladder, waiting)
    take(ladder, waiting)
    climb(ladder, "a", 0.5)
    assert take(ladder, waiting) is None  # b is not there yet
    climb(ladder, "b", 0.6)
    assert take(ladder, waiting) == ("b", 1)
    climb(ladder, "b", 0.1)
    assert take(ladder, waiting) == ("b", 2)
    climb(ladder, "b", 0.1)
    assert take(ladder, waiting) is None


@pytest.fixture(scope="module")
def halved(tmp_path_factory, forked_trainings):
    """Three learning rates, of which one learns; reduction 3, rungs 1 and 3."""
    tree = tree_of(write_config(tmp_path_factory.mktemp("halved")), seed=1, num_epochs=3)
    tree["algo"]["optim_params"] = {"policy": {"learning_rate": {"initial": [1e-9, 1e-2, 1e-8]}}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("imitate.train.sweep.sweep.draw_settings", lambda _, paths, **words: paths)
        result = Sweep(tree).run(resources=Resources(workers=2), halving=Halving("train_loss"))
    return tree, result


def test_the_best_run_is_trained_to_its_end_and_the_others_are_named_with_a_reason(halved):
    _, result = halved
    assert result.exit_code == 0
    statuses = [run.status for run in result.runs]
    assert statuses[1] == "finished"
    assert statuses[0].startswith("pruned at epoch 1: train_loss ")
    assert statuses[2].endswith(" there, of which 1 continued")
    ranks = {words.split(" is ")[1].split(",")[0] for words in (statuses[0], statuses[2])}
    assert ranks == {"rank 2 of 3 there", "rank 3 of 3 there"}
    assert [run.results["epoch"] for run in result.runs] == [1, 3, 1]
    assert [run.is_over for run in result.runs] == [False, True, False]
    saved = json.loads((result.folder / "results.json").read_text())
    assert [row["status"] for row in saved] == statuses
    # A pruned run is not in the table over seeds: it has not been trained to its end.
    assert [setting.seeds for setting in result.settings] == [(1,)]


@pytest.fixture
def copied(halved, tmp_path):
    """The sweep and its result in a folder of the test."""
    tree, result = halved
    shutil.copytree(result.folder.parent, tmp_path / "runs")
    return {**tree, "train": {**tree["train"], "output_dir": str(tmp_path / "runs")}}, result


def test_a_run_that_may_yet_be_promoted_is_not_pruned_by_an_interruption(copied, monkeypatch):
    config, _ = copied

    def interrupted(self, resources):
        self._stop.set()
        return {}

    monkeypatch.setattr(SweepWork, "run", interrupted)
    result = Sweep(config).run(halving=Halving("train_loss"))
    paused = "paused at epoch 1 of 3"
    assert [run.status for run in result.runs] == [paused, "finished", paused]
    assert result.exit_code == 130


def test_the_same_call_has_nothing_left_to_do_and_the_others_can_be_trained_later(
    copied, forked_trainings
):
    config, result = copied
    heard = []
    again = Sweep(config).run(on_change=heard.append, halving=Halving("train_loss"))
    assert [run.status for run in again.runs] == [run.status for run in result.runs]
    assert "running" not in [run.status for run in heard]
    whole = Sweep(config).run(resources=Resources(workers=2))
    assert [run.status for run in whole.runs] == ["finished"] * 3
    (path,) = whole.folder.glob("*1e-09*/*/metrics.jsonl")
    assert [record["epoch"] for record in records(path.parent)] == [1, 2, 3]


def test_runs_that_cannot_be_compared_are_refused(tmp_path):
    config = write_config(tmp_path)
    sweep = Sweep(config, ["train.num_epochs=[2,3]"])
    with refused("need the same train.num_epochs, but got", error=ConfigError):
        sweep.run(halving=Halving("train_loss"))
    sweep = Sweep(config, name="other")
    keys = {"success_rate": "experiment.rollout.enabled", "valid_loss": "experiment.validate"}
    for metric, key in keys.items():
        with refused(f"--metric {metric}: needs {key}", error=ConfigError):
            sweep.run(halving=Halving(metric))


# ---- the order after an interruption follows from the folders of the runs ------------------------


@pytest.fixture
def place(tmp_path):
    """Writes the folder of a run: success rates by epoch, and the status in results.json; None if there is none."""

    def write(name, rates, status):
        folder = tmp_path / name / "20260101000000"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        for epoch, rate in rates.items():
            line = {"kind": "rollout", "epoch": epoch, "Rollout/Success_Rate": rate}
            with (folder / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
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
    place("a", {1: 0.9}, "paused at epoch 1 of 9")  # waits on the first rung
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
        "pruned at epoch 1: success_rate 0.1 is rank 2 of 2 there, of which 0 continued"
    )


def test_a_finished_run_stands_on_every_rung(place, tmp_path):
    place("a", {4: 0.7, 9: 0.8}, "finished")  # it was first evaluated at epoch 4
    place("b", {1: 0.6}, "paused at epoch 1 of 9")
    place("c", {1: 0.5}, "paused at epoch 1 of 9")
    order = ByHalving(Halving(), states(tmp_path, "a", "b", "c"), 9, tmp_path)
    assert order.ladder.reached["a"] == [0.7, 0.7, 0.8]
    assert order.next() is None
