"""A file appears whole or not at all."""

import errno
import os

import pytest

from imitate.data.curate.target import Target, backup_of
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
