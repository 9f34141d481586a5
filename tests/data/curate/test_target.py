"""A file appears whole or not at all."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from imitate.data import DatasetFile
from imitate.data.curate import edits
from imitate.data.curate.target import Target, backup_of
from imitate.data.doctor.diagnosis import diagnose
from imitate.errors import DatasetError


def test_an_error_leaves_nothing(tmp_path):
    out = tmp_path / "new.hdf5"
    with pytest.raises(ZeroDivisionError), Target(out).writing() as part:
        part.write_text("half")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_failed_replacement_leaves_the_old_file_and_no_backup(tmp_path):
    old = tmp_path / "old.hdf5"
    old.write_text("old")
    with pytest.raises(DatasetError, match="No space left"), Target(None, old).writing() as part:
        part.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert old.read_text() == "old"
    assert list(tmp_path.iterdir()) == [old]


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

    monkeypatch.setattr(os, "link", refuse)
    file = tmp_path / "a.hdf5"
    file.write_text("0")
    with Target(None, file).writing() as part:
        part.write_text("1")
    assert (file.read_text(), file.with_name("a.hdf5.bak").read_text()) == ("1", "0")


def test_a_link_to_the_source_is_the_source(tmp_path):
    file = tmp_path / "a.hdf5"
    file.write_text("0")
    link = tmp_path / "b.hdf5"
    link.symlink_to(file)
    target = Target(link, source=file, overwrite=True)
    with pytest.raises(DatasetError, match="is the file that is read"), target.writing():
        pass
    assert file.read_text() == "0"


KILLED = """
import os, signal, sys
from pathlib import Path
from imitate.data.curate import edits, target
from imitate.data.curate.target import Target

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

stage, file = sys.argv[1], Path(sys.argv[2])
if stage == "before the backup":
    target._keep = die
if stage == "before the file is replaced":
    os.replace = die
on_demo = die if stage == "while demos are copied" else (lambda done, total: None)
edits.delete(file, Target(None, file), demos=["demo_1"], on_demo=on_demo)
if stage == "after all":
    die()
"""


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
    done = subprocess.run(
        [sys.executable, "-c", KILLED, stage, str(file)], timeout=120, check=False
    )
    assert done.returncode == -signal.SIGKILL
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
