"""The file of features: computed once, resumed, bounded."""

import os
import signal

import numpy as np
import pytest
import torch

from imitate.errors import DatasetError
from imitate.train import features
from imitate.train.features import NoRoomError, StoppedError, features_folder, features_once
from tests.forked import Forked, die

COUNT, SHAPE = 150, (3, 2, 1)


def rows_of(rows):
    return (rows[:, None, None, None] + np.arange(6).reshape(SHAPE) / 8).astype(np.float32)


class Computed:
    def __init__(self):
        self.rows = []

    def __call__(self, rows):
        self.rows += rows.tolist()
        return rows_of(rows)


def test_computed_once(tmp_path):
    compute = Computed()
    values, words = features_once("a-1", COUNT, SHAPE, compute)
    assert compute.rows == list(range(COUNT))
    assert torch.equal(values, torch.from_numpy(rows_of(np.arange(COUNT))).half())
    assert words.startswith("features were computed once into")
    again, words = features_once("a-1", COUNT, SHAPE, compute)
    assert len(compute.rows) == COUNT
    assert torch.equal(values, again)
    assert words.endswith("a-1.features (1.8 kB)")


def test_a_stopped_one_is_resumed_at_a_whole_row():
    compute, answers = Computed(), iter([False, False, True])
    with pytest.raises(StoppedError):
        features_once("a-1", COUNT, SHAPE, compute, lambda: next(answers))
    (partial,) = features_folder().iterdir()
    assert partial.stat().st_size == 128 * 12
    with partial.open("ab") as file:
        file.write(b"half")  # of a row, as a kill leaves it
    values, _ = features_once("a-1", COUNT, SHAPE, compute)
    assert compute.rows == list(range(COUNT))
    assert torch.equal(values, torch.from_numpy(rows_of(np.arange(COUNT))).half())
    assert [file.name for file in features_folder().iterdir()] == ["a-1.features"]


def test_the_file_used_longest_ago_gives_way(monkeypatch):
    for number, name in enumerate(("old-1", "new-1")):
        features_once(name, COUNT, SHAPE, rows_of)
        os.utime(features_folder() / f"{name}.features", (number, number))
    mapped, _ = features_once("old-1", COUNT, SHAPE, rows_of)  # used again: "new" is older now
    monkeypatch.setenv("IMITATE_CACHE_GB", str(2.5 * COUNT * 12 / 1e9))
    features_once("third-1", COUNT, SHAPE, rows_of)
    names = sorted(file.name for file in features_folder().glob("*.features"))
    assert names == ["old-1.features", "third-1.features"]
    assert float(mapped[3, 0, 0, 0]) == 3


def test_what_an_earlier_run_wrote_counts_too(monkeypatch):
    for name in ("other-1", "a-1"):
        stopped = iter([False, False, True]).__next__
        with pytest.raises(StoppedError):
            features_once(name, COUNT, SHAPE, rows_of, stopped)
    features_once("old-1", COUNT, SHAPE, rows_of)
    monkeypatch.setenv("IMITATE_CACHE_GB", str(1.5 * COUNT * 12 / 1e9))
    features_once("a-1", COUNT, SHAPE, rows_of)
    assert [file.name for file in features_folder().iterdir()] == ["a-1.features"]


@pytest.mark.parametrize("why", ["bound", "disk", "folder"])
def test_no_room(why, monkeypatch, tmp_path):
    if why == "bound":
        monkeypatch.setenv("IMITATE_CACHE_GB", "0.000001")
    elif why == "disk":
        monkeypatch.setattr(features, "_SPARE_BYTES", 2**60)
    else:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("IMITATE_CACHE", str(tmp_path / "file"))
    with pytest.raises(
        NoRoomError,
        match={"bound": "exceed the cache's", "disk": "are needed, but"}.get(why, "file"),
    ):
        features_once("a-1", COUNT, SHAPE, rows_of)


@pytest.mark.parametrize("value", [1e6, np.nan])
def test_values_that_float16_cannot_hold_are_refused(value):
    with pytest.raises(DatasetError, match="float16 holds up to 65504"):
        features_once("a-1", COUNT, SHAPE, lambda rows: rows_of(rows) * value)
    assert not list(features_folder().glob("*.features"))


def killed_at(say, moment):
    """Compute the file, and die at a moment."""

    def compute(rows):
        if moment == "while computing" and rows[0] == 128:
            die()
        return rows_of(rows)

    if moment == "before the rename":
        os.replace = die
    elif moment == "after the rename":
        features.was_read = die
    features_once("a-1", COUNT, SHAPE, compute)


@pytest.mark.parametrize(
    ("moment", "finished"),
    [("while computing", False), ("before the rename", False), ("after the rename", True)],
)
def test_a_file_of_a_killed_process_is_believed_only_if_it_is_whole(moment, finished):
    with Forked(killed_at, moment) as process:
        process.rest()
    assert process.code == -signal.SIGKILL
    assert [file.suffix for file in features_folder().iterdir()] == [
        ".features" if finished else ".partial"
    ]
    compute = Computed()
    values, words = features_once("a-1", COUNT, SHAPE, compute)
    assert torch.equal(values, torch.from_numpy(rows_of(np.arange(COUNT))).half())
    assert ("are read" in words) == finished
    assert [file.name for file in features_folder().iterdir()] == ["a-1.features"]
    if moment != "while computing":
        assert not compute.rows  # all of them were there


def test_processes_that_are_killed_again_and_again_make_one_whole_file():
    count = 64 * 40

    def compute(say, parts):
        def part(rows):
            say(rows[0])
            return rows_of(rows) if next(left, None) is not None else signal.pause()

        left = iter(range(parts))
        features_once("a-1", count, SHAPE, part)

    for told in (1, 3, 2, 7, 4):
        with Forked(compute, told + 2) as process:  # killed somewhere in the last two of its parts
            assert all(process.line() for _ in range(told))
        assert process.code == -signal.SIGKILL
    values, _ = features_once("a-1", count, SHAPE, rows_of)
    assert torch.equal(values, torch.from_numpy(rows_of(np.arange(count))).half())
    assert [file.name for file in features_folder().iterdir()] == ["a-1.features"]
