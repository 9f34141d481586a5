"""Resuming in exact values: what may change, which checkpoint is taken, and whether the data are the same."""

import json
import os
from types import SimpleNamespace as Words

import numpy as np
import pytest

from imitate.algo.base.acting import OMITTED
from imitate.errors import CheckpointError, ConfigError, UserError
from imitate.system.run_folder import RunFolder
from imitate.train import resume as module
from imitate.train.resume import check_same_data, last_state, restored, resumed_config, resuming
from tests.demo_files import episode, write_demos
from tests.refusals import refused
from tests.tiny import tiny_tree


@pytest.fixture
def folder(tmp_path):
    """Makes the folder of a run with so many datasets."""
    paths = [
        write_demos(tmp_path / f"{n}.hdf5", [episode(2, {"s": np.zeros((2, 1))})]) for n in range(3)
    ]

    def make(count=1):
        tree = tiny_tree("bc", obs={"s": 1})
        tree["train"]["data"] = [{"path": str(path)} for path in paths[:count]] or None
        run = tmp_path / "run 1"
        run.mkdir(exist_ok=True)
        (run / "config.json").write_text(json.dumps(tree))
        return RunFolder(run)

    make.paths = paths
    return make


def test_what_may_change(folder):
    run = folder()
    config = resumed_config(run, ["train.num_epochs=7", " cluster.cpus_per_worker=2"])
    assert config.train.num_epochs == 7 and config.train.data[0].path == str(folder.paths[0])
    assert resumed_config(run, ["experiment.save.every_n_epochs=3"]).train.num_epochs != 7
    for text in ("train.seed=2", "experiment.saved=1", "train.database=1"):
        key = text.partition("=")[0]
        words = f"--set {key}: cannot change in a resumed run ({run.path}); only these may change"
        with refused(words, error=ConfigError):
            resumed_config(run, [text])


def test_settings_of_the_cluster_are_checked(folder, monkeypatch):
    checked = []
    monkeypatch.setattr(module, "check_cluster", lambda *given: checked.append(given))
    config = resumed_config(folder(), ["train.num_epochs=7"])
    assert [(one.train.num_epochs, texts) for one, texts in checked] == [
        (7, ["train.num_epochs=7"])
    ]
    assert config.train.num_epochs == 7


@pytest.mark.parametrize(("count", "words"), [(0, "0 datasets"), (2, "2 datasets")])
def test_a_new_path_is_that_of_the_only_dataset(folder, count, words):
    moved = resumed_config(folder(1), [], folder.paths[2])
    assert [entry.path for entry in moved.train.data] == [str(folder.paths[2])]
    with refused(f"--dataset: the run has {words}: give the new path of each", error=ConfigError):
        resumed_config(folder(count), [], folder.paths[2])


def test_data_that_were_moved(folder):
    assert not resumed_config(folder(0), []).train.data
    run = folder()
    folder.paths[0].unlink()
    words = "no file|if it was moved, give its new path: --dataset PATH"
    with refused(words, error=ConfigError):
        resumed_config(run, [])


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    """Writes checkpoints, the oldest first; those in `bad` cannot be read."""
    run, bad = RunFolder(tmp_path), set()
    run.checkpoints.mkdir()

    def load(path):
        if path.name in bad:
            raise CheckpointError(f"{path.name}: damaged")
        return {"name": path.name, "model": {OMITTED: 1} if path.name in acting else {}}

    def write(*names, damaged=(), only_acting=()):
        bad.update(damaged)
        acting.update(only_acting)
        for number, name in enumerate(names):
            path = run.checkpoints / name
            path.touch()
            os.utime(path, (number, number))
        return run

    acting = set()
    monkeypatch.setattr(module, "load_checkpoint", load)
    return write


def test_the_last_checkpoint_or_else_the_newest_is_taken(checkpoints):
    assert last_state(checkpoints()) is None
    run = checkpoints("epoch_9.pth", "epoch_10.pth")
    assert last_state(run)["name"] == "epoch_10.pth"
    checkpoints("last.pth")
    assert last_state(run)["name"] == "last.pth"
    checkpoints(damaged=["last.pth"])
    assert last_state(run)["name"] == "epoch_10.pth"
    checkpoints(damaged=["epoch_10.pth"])
    assert last_state(run)["name"] == "epoch_9.pth"
    checkpoints(damaged=["epoch_9.pth"])
    with refused("last.pth: damaged", error=CheckpointError):
        last_state(run)


def test_a_checkpoint_that_only_acts_is_refused(checkpoints):
    run = checkpoints("last.pth", only_acting=["last.pth"])
    words = f"{run.checkpoints / 'last.pth'}: cannot be resumed, because it {module.REMEDY}"
    with refused(words, error=CheckpointError):
        last_state(run)


@pytest.mark.parametrize(
    ("error", "words"),
    [(ValueError("one\n two "), "ValueError: two"), (KeyError(), "KeyError: ")],
)
def test_a_state_that_cannot_be_restored(tmp_path, error, words):
    with pytest.raises(CheckpointError) as caught, restored(tmp_path):
        raise error
    assert str(caught.value) == (
        f"{tmp_path}: no run can be resumed from it ({words}): replace it by another checkpoint "
        "of the run"
    )
    with pytest.raises(UserError, match="^own$"), restored(tmp_path):
        raise UserError("own")


def test_the_command_that_resumes(folder, monkeypatch):
    run = folder()
    assert resuming(run) == f"imitate train --resume '{run.path}'"
    monkeypatch.setattr(module, "untrusted_in", lambda config: ["my.envs"])
    monkeypatch.setattr(module, "trust_options", lambda names: ["--trust", *names])
    assert resuming(run) == f"imitate train --resume '{run.path}' --trust my.envs"
    run.config.unlink()
    assert resuming(run) == f"imitate train --resume '{run.path}'"


DATA = {
    **{"path": "a", "size_bytes": 5, "num_demos": 2, "sha256": "x", "demos_sha256": "y"},
    **{"content_version": 1, "content_sha256": "z"},
}


@pytest.mark.parametrize(
    ("before", "now", "said", "changed"),
    [
        ({}, {}, 0, None),
        ({}, {"path": "b", "size_bytes": 6}, 0, None),
        ({"num_demos": 3}, {}, 0, "num_demos"),
        ({"sha256": "0"}, {}, 0, "sha256: actions, or names of demos"),
        ({"demos_sha256": "0"}, {}, 0, "demos_sha256: which demos the filter key selects"),
        ({"content_sha256": "0"}, {}, 0, "content_sha256: observations, rewards or other values"),
        ({"content_version": 0, "content_sha256": "0"}, {}, 1, None),
        ({"content_version": 0, "num_demos": 3}, {}, 1, "num_demos"),
        ({"num_demos": 3, "more": 1}, {}, 0, "num_demos, more"),
    ],
)
def test_data_are_compared(before, now, said, changed):
    lines = []
    before, now = {**DATA, **before}, {**DATA, **now}
    try:
        check_same_data([before], [now], lines.append)
        found = None
    except CheckpointError as error:
        found = str(error)
    words = f"{now['path']}: has changed since the run began ({changed}); restore the original"
    assert found is None if changed is None else found.startswith(words)
    text = (
        f"{now['path']}: its actions are unchanged since the run began; the version that began it "
        "recorded no checksum of observations and rewards"
    )
    assert lines == [text] * said


def test_the_number_of_datasets():
    words = "train.data: the run began with 1 dataset, but now has 2"
    with refused(words, error=CheckpointError):
        check_same_data([DATA], [DATA, DATA], Words().__setattr__)
