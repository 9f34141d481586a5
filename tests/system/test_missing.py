"""Words for paths that do not exist: which names are near, and what is said without one."""

import os
from pathlib import Path

import pytest

from imitate.system.missing import nearest_path, no_such


@pytest.fixture
def place(tmp_path):
    for name in ("demos/lift.hdf5", "demos/stack.hdf5", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("missing", "near"),
    [
        ("demos/lift.hdf", "demos/lift.hdf5"),
        ("demo/lift.hdf5", "demos/lift.hdf5"),  # the first part that differs
        ("demo/other.hdf5", None),  # what is below it is not there
        ("demos/pick.hdf5", None),  # only the ending is alike
        ("notes", "notes.md"),
    ],
)
def test_near_names(place, missing, near):
    found = None if near is None else str(place / near)
    path = place / missing
    assert nearest_path(path) == found
    hint = "try again" if near is None else f"did you mean '{found}'?"
    assert no_such(path, "run", "try again") == f"{path}: there is no such run; {hint}"
    assert no_such(path) == f"{path}: there is no such file" + (f"; {hint}" if near else "")


@pytest.mark.parametrize(("others", "near"), [(4999, True), (5000, False)])
def test_only_the_first_entries_of_a_large_folder_are_compared(place, monkeypatch, others, near):
    names = [*(f"{number}" for number in range(others)), "notes.md"]
    monkeypatch.setattr(Path, "iterdir", lambda folder: (folder / name for name in names))
    assert nearest_path(place / "notes.m") == (str(place / "notes.md") if near else None)


def test_paths_that_exist_but_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "pipe"
    assert no_such(path, "dataset") == f"{path}: is not a regular file, so it is not a dataset"
