"""Asynchronous halving: decisions worked out by hand, and a sweep that follows them."""

import json
import shutil

import pytest

from imitate.errors import ConfigError
from imitate.train.halving import Halving, Ladder
from imitate.train.sweep import Resources, Sweep
from imitate.train.sweep_work import SweepWork
from tests.train.test_sweep import write_config


def test_rungs_are_a_factor_apart_and_end_with_the_last_epoch():
    assert Halving(reduction=3, first_epochs=1).rungs(27) == (1, 3, 9, 27)
    assert Halving(reduction=3, first_epochs=2).rungs(20) == (2, 6, 18, 20)
    assert Halving(reduction=2, first_epochs=5).rungs(5) == (5,)


def test_values_are_the_newest_up_to_the_rung_and_more_is_better():
    records = [
        {"kind": "epoch", "epoch": 1, "Valid/Loss": 0.5, "Train/Loss": 0.9},
        {"kind": "rollout", "epoch": 1, "Rollout/Success_Rate": 0.25, "Rollout/Return": -3.0},
        {"kind": "epoch", "epoch": 2, "Valid/Loss": None, "Train/Loss": 0.7},
        {"kind": "rollout", "epoch": 3, "Rollout/Success_Rate": 0.75, "Rollout/Return": -1.0},
    ]
    assert Halving("success_rate").value(records, 2) == 0.25
    assert Halving("success_rate").value(records, 3) == 0.75
    assert Halving("return").value(records, 3) == -1.0
    assert Halving("valid_loss").value(records, 1) == -0.5
    assert Halving("valid_loss").value(records, 2) == -float("inf")  # it was not finite
    assert Halving("train_loss").value(records, 9) == -0.7
    assert Halving("success_rate").value(records, 0) is None


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
    assert ladder.place("f") == (1, 2, 3)
    assert ladder.place("g") == (0, 7, 9)


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
    config = write_config(tmp_path_factory.mktemp("halved"))
    tree = json.loads(config.read_text())
    tree["train"] |= {"seed": 1, "num_epochs": 3}
    tree["algo"]["optim_params"] = {"policy": {"learning_rate": {"initial": [1e-9, 1e-2, 1e-8]}}}
    config.write_text(json.dumps(tree))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("imitate.train.sweep.draw_settings", lambda _, paths, **words: paths)
        result = Sweep(config).run(resources=Resources(workers=2), halving=Halving("train_loss"))
    return config, result


def test_the_best_run_is_trained_to_its_end_and_the_others_are_named_with_a_reason(halved):
    config, result = halved
    assert result.exit_code == 0
    statuses = [run.status for run in result.runs]
    assert statuses[1] == "finished"
    assert statuses[0].startswith("pruned at epoch 1: train_loss ")
    assert statuses[2].endswith(" there, of which 1 went on")
    assert {words.split(" is ")[1].split(",")[0] for words in (statuses[0], statuses[2])} == {
        "rank 2 of 3 there",
        "rank 3 of 3 there",
    }
    assert [run.results["epoch"] for run in result.runs] == [1, 3, 1]
    assert [run.is_over for run in result.runs] == [False, True, False]
    saved = json.loads((result.folder / "results.json").read_text())
    assert [row["status"] for row in saved] == statuses
    # A pruned run is not in the table over seeds: it has not been trained to its end.
    assert [setting.seeds for setting in result.settings] == [(1,)]


@pytest.fixture
def copied(halved, tmp_path):
    """The sweep and its result in a folder of the test."""
    config, result = halved
    shutil.copytree(result.folder.parent, tmp_path / "runs")
    tree = json.loads(config.read_text())
    tree["train"] |= {
        "data": str(config.with_name("data.hdf5")),
        "output_dir": str(tmp_path / "runs"),
    }
    return tree, result


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
    lines = [
        json.loads(line)["epoch"]
        for line in next(whole.folder.glob("*1e-09*/*/metrics.jsonl")).read_text().splitlines()
    ]
    assert lines == [1, 2, 3]


def test_runs_that_cannot_be_compared_are_refused(tmp_path):
    config = write_config(tmp_path)
    sweep = Sweep(config, ["train.num_epochs=[2,3]"])
    with pytest.raises(ConfigError, match="need the same train.num_epochs: got"):
        sweep.run(halving=Halving("train_loss"))
    sweep = Sweep(config, name="other")
    for metric, key in (
        ("success_rate", "experiment.rollout.enabled"),
        ("valid_loss", "experiment.validate"),
    ):
        with pytest.raises(ConfigError, match=f"--metric {metric}: needs {key}"):
            sweep.run(halving=Halving(metric))
