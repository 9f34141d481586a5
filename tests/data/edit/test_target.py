"""A file appears whole or not at all; splits of its demos."""

import errno
import os
import platform
import signal
import tempfile
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imitate.data import DatasetFile
from imitate.data.edit import edits, target
from imitate.data.edit.edits import split
from imitate.data.edit.target import Target, backup_of, check_is_hdf5
from imitate.data.file import journal
from imitate.data.quality.doctor.diagnosis import diagnose
from imitate.errors import DatasetError
from tests.forked import Forked, die
from tests.refusals import refused


def killed(work, *args):
    """Run a function in a process that dies by SIGKILL."""
    with Forked(work, *args) as process:
        process.rest()
    assert process.code == -signal.SIGKILL


def test_an_error_leaves_nothing(tmp_path):
    out = tmp_path / "new.hdf5"
    with pytest.raises(ZeroDivisionError), Target(out).writing() as part:
        part.write_text("half")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_changed_in_place(tmp_path):
    source = tmp_path / "shards"
    source.mkdir()
    with pytest.raises(DatasetError, match="is not an HDF5 file"), Target(None, source).writing():
        raise AssertionError("it would be replaced")


def test_a_failed_replacement_leaves_the_old_file_and_no_backup(tmp_path):
    old = tmp_path / "old.hdf5"
    old.write_text("old")
    with pytest.raises(DatasetError, match="No space left"), Target(None, old).writing() as part:
        part.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert old.read_text() == "old"
    assert list(tmp_path.iterdir()) == [old]


def test_a_folder_is_made_and_an_error_has_its_first_line(tmp_path):
    out = tmp_path / "x" / "y" / "a.hdf5"
    with Target(out).writing() as part:
        part.write_text("1")
    assert out.read_text() == "1"
    words = f"{out}: cannot be written (torn): free some space, or choose another folder"
    with refused(words), Target(out, overwrite=True).writing():
        raise OSError("torn\nmore")


def test_in_place_keeps_a_backup_each_time(tmp_path):
    file = tmp_path / "a.hdf5"
    file.write_text("0")
    for number in (1, 2, 3):
        with Target(None, file).writing() as part:
            part.write_text(str(number))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "a.hdf5": "3",
        "a.hdf5.bak": "0",
        "a.hdf5.bak1": "1",
        "a.hdf5.bak2": "2",
    }
    assert backup_of(file).name == "a.hdf5.bak3"


def test_the_backup_where_links_are_not_possible(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(errno.EPERM, "no links here")

    synced = []
    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(target, "sync", lambda path: synced.append(path.name.partition("-")[0]))
    file = tmp_path / "a.hdf5"
    file.write_text("0")
    with Target(None, file).writing() as part:
        part.write_text("1")
    assert synced == ["a.hdf5.part", "a.hdf5.bak"]
    assert (file.read_text(), file.with_name("a.hdf5.bak").read_text()) == ("1", "0")


def test_files_that_are_replaced_or_not(tmp_path, monkeypatch):
    file, other = tmp_path / "a.hdf5", tmp_path / "b.hdf5"
    file.write_text("0")
    (tmp_path / "c.hdf5").write_text("")
    with refused("no file to write: name a new file"):
        _ = Target(None).path
    assert Target(None, file).path == file and Target(other, file).path == other
    for words, target_of in (
        ("exists already: name another with --out, or add --overwrite", Target(file)),
        ("exists already: name", Target(file, tmp_path / "c.hdf5")),
        (
            "is also the input file: name another with --out, or add --in-place",
            Target(file, file),
        ),
    ):
        with refused(f"{file}: {words}"), target_of.writing():
            pass
    assert file.read_text() == "0"
    with Target(file, overwrite=True).writing() as part:
        assert part.name.startswith(f"a.hdf5.part-{os.getpid()}-")
        part.write_text("1")
    assert file.read_text() == "1" and not (tmp_path / "a.hdf5.bak").exists()
    check_is_hdf5(tmp_path / "missing")
    check_is_hdf5(file)  # of no format: it may be damaged HDF5
    words = "is not an HDF5 file, so it is not changed in place: name a new"
    with refused(f"{tmp_path}: {words}"):
        check_is_hdf5(tmp_path)
    monkeypatch.setattr(target, "convertible_format", lambda path: "npz")
    with refused(f"{file}: {words}"):
        check_is_hdf5(file)
    check_is_hdf5(tmp_path / "missing")


def test_copies_of_dead_processes_of_this_machine_are_removed(tmp_path, monkeypatch):
    def kill(process, signal):
        assert signal == 0
        if process != 7:
            raise {2: ProcessLookupError, 3: PermissionError}.get(process, OverflowError)

    monkeypatch.setattr(os, "kill", kill)
    machine = f"{zlib.crc32(platform.node().encode()):08x}"
    gone = [f"2-{machine}", "2", f"2-{machine}-3", f"{2**70}-{machine}"]
    kept = [f"7-{machine}", f"3-{machine}", f"2-{int(machine, 16) ^ 1:08x}", "x", f"2-{machine}-30"]
    for words in (*gone, *kept):
        (tmp_path / f"a.hdf5.part-{words}").write_text("")
    (tmp_path / f"b.hdf5.part-2-{machine}").write_text("")
    with Target(tmp_path / "a.hdf5").writing() as part:
        assert part.name == f"a.hdf5.part-{os.getpid()}-{machine}"
        part.write_text("")
    left = [f"a.hdf5.part-{words}" for words in kept] + [f"b.hdf5.part-2-{machine}", "a.hdf5"]
    assert {path.name for path in tmp_path.iterdir()} == set(left)


def test_a_link_to_the_source_is_the_source(tmp_path):
    file = tmp_path / "a.hdf5"
    file.write_text("0")
    link = tmp_path / "b.hdf5"
    link.symlink_to(file)
    same = Target(link, source=file, overwrite=True)
    with pytest.raises(DatasetError, match="is also the input file"), same.writing():
        pass
    assert file.read_text() == "0"


def delete_and_die(say, stage, file):
    if stage == "before the backup":
        target.keep_backup = die
    if stage == "before the file is replaced":
        os.replace = die
    on_demo = die if stage == "while demos are copied" else (lambda done, total: None)
    edits.delete(file, Target(None, file), demos=["demo_1"], on_demo=on_demo)
    die()


@pytest.mark.parametrize(
    ("stage", "backup", "changed"),
    [
        ("while demos are copied", False, False),
        ("before the backup", False, False),
        ("before the file is replaced", True, False),
        ("after all", True, True),
    ],
)
def test_a_kill_in_place_loses_nothing(demo_file, stage, backup, changed):
    file = demo_file(num_demos=3)
    before = file.read_bytes()
    killed(delete_and_die, stage, file)
    kept = file.with_name("demos.hdf5.bak")
    assert kept.exists() == backup
    if backup:
        assert kept.read_bytes() == before
    assert (file.read_bytes() != before) == changed
    with DatasetFile(file) as opened:
        wanted = ["demo_0", "demo_2"] if changed else ["demo_0", "demo_1", "demo_2"]
        assert opened.demos() == wanted
    assert diagnose(file).exit_code < 3
    edits.delete(file, Target(None, file), demos=["demo_2"])
    with DatasetFile(file) as opened:
        assert "demo_2" not in opened.demos(), "and the next run goes through"


# ---- splits: disjoint, complete, of the wanted size ----------------------------------------------


def bare_file(path, demos):
    with h5py.File(path, "w") as file:
        for number in range(demos):
            file[f"data/demo_{number}/actions"] = np.zeros((1, 1))


def test_the_copy_says_how_far_it_is(tmp_path):
    source, seen = tmp_path / "a.hdf5", []
    with h5py.File(source, "w") as file:
        for number in range(2):
            file[f"data/demo_{number}/actions"] = np.zeros((2_500_000, 1))
    split(source, Target(tmp_path / "b.hdf5"), ratio=0.5, on_mb=lambda *at: seen.append(at))
    assert seen == [(16, 40), (32, 40), (40, 40)]


@settings(max_examples=20)
@given(demos=st.integers(2, 30), ratio=st.floats(0.01, 0.99), seed=st.integers(0, 100))
def test_split_parts_the_demos(demos, ratio, seed):
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "a.hdf5"), Path(folder, "b.hdf5")
        bare_file(source, demos)
        masks = split(source, Target(out), ratio=ratio, seed=seed)
        train, valid = set(masks["train"]), set(masks["valid"])
        assert not train & valid
        assert len(train | valid) == demos
        assert len(valid) == min(max(1, round(ratio * demos)), demos - 1)
        with DatasetFile(out) as file:
            assert file.filter_keys() == masks


def split_and_die(say, file, writes):
    """Die at a write of the journal, after so many."""
    left, write = iter(range(writes)), journal.write_all
    journal.write_all = lambda *args: die() if next(left, None) is None else write(*args)
    split(file, Target(None, file), ratio=0.5, overwrite=True)


@pytest.mark.parametrize("writes", [1, 2, 3, 5, 8, 12])
def test_a_kill_in_place_leaves_all_or_nothing(demo_file, writes):
    file = demo_file(num_demos=6, filter_keys={"train": [0, 1], "valid": [2], "mine": [5]})
    before = file.read_bytes()
    with DatasetFile(file) as opened:
        masks = opened.filter_keys()
    killed(split_and_die, file, writes)
    left = file.read_bytes()
    if writes > 1:  # the first one goes to the journal alone
        with pytest.raises(DatasetError, match="interrupted change: run `imitate dataset recover"):
            DatasetFile(file)
    assert file.read_bytes() == left, "reading never writes"
    journal.roll_back(file)
    with DatasetFile(file) as opened:
        assert opened.filter_keys() == masks
    assert file.read_bytes() == before, "and the size is the one that it had"
    assert [path.name for path in file.parent.iterdir()] == ["demos.hdf5"]
    split(file, Target(None, file), ratio=0.5, overwrite=True)
    with DatasetFile(file) as opened:
        assert len(opened.filter_keys()["train"]) == 3
        assert opened.filter_keys()["mine"] == ["demo_5"]


def test_what_a_killed_copy_left_goes_with_the_next(demo_file, tmp_path):
    file, out = demo_file(num_demos=4), tmp_path / "out.hdf5"
    killed(lambda say: split(file, Target(out), ratio=0.5, on_mb=die))
    (left,) = tmp_path.glob("out.hdf5.part-*")
    ours = out.with_name("out.hdf5.part-1")  # of a process that lives
    ours.write_text("")
    split(file, Target(out), ratio=0.5)
    assert not left.exists()
    assert out.exists() and ours.exists()


def test_a_leftover_that_another_process_removes_is_no_error(tmp_path, monkeypatch):
    path = tmp_path / "a.hdf5"
    leftover = tmp_path / "a.hdf5.part-7"
    leftover.touch()
    seen = []
    monkeypatch.setattr(
        target, "_is_alive", lambda process: seen.append(process) or leftover.unlink()
    )
    target.remove_leftovers(path)
    assert seen == [7]
