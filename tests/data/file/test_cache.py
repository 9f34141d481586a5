"""Folder of derived files: where it is, what is removed from it."""

import os
import pickle
from pathlib import Path

import pytest

from imitate.data.file.cache import Hold, cache_folder, limit_bytes, remove_oldest, was_read
from imitate.errors import UserError


def test_the_folder_is_given_by_variables(monkeypatch):
    monkeypatch.setenv("IMITATE_CACHE", "~/c")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder("frames") == Path.home() / "c" / "frames"
    monkeypatch.delenv("IMITATE_CACHE")
    assert cache_folder("frames") == Path("/x/imitate/frames")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder("frames") == Path.home() / ".cache" / "imitate" / "frames"


@pytest.fixture
def files(tmp_path):
    """Three files of 10 bytes; the second was read the longest ago."""
    made = [tmp_path / name for name in "abc"]
    for file, second in zip(made, (2, 1, 3), strict=True):
        file.write_bytes(b"0123456789")
        os.utime(file, (second, second))
    return made


@pytest.mark.parametrize(
    ("room", "kept"), [(30, "abc"), (29, "ac"), (20, "ac"), (19, "c"), (0, ""), (-1, "")]
)
def test_the_least_recently_read_files_are_removed(files, room, kept):
    assert remove_oldest(files, room) == 10.0 * len(kept)
    assert "".join(file.name for file in files if file.exists()) == kept


def test_files_in_use_and_files_that_others_removed(files):
    held, again = Hold(files[1]), Hold(files[1])
    del again
    files[0].unlink()
    assert remove_oldest(files, 0) == 10.0
    assert [file.exists() for file in files] == [False, True, False]
    copy = pickle.loads(pickle.dumps(held))
    del held
    assert remove_oldest(files, 0) == 0.0
    del copy
    Hold(files[0])  # a missing file is not an error
    assert not files[0].exists()


def test_reading_is_recorded_and_the_file_not_changed(files):
    before = files[0].stat()
    was_read(files[0])
    after = files[0].stat()
    assert after.st_mtime_ns == before.st_mtime_ns and after.st_atime_ns > before.st_atime_ns
    was_read(files[0].with_name("missing"))


@pytest.mark.parametrize(
    ("text", "limit"), [(None, 50e9), ("", 50e9), (" 2.5 ", 2.5e9), ("0", 0.0), ("inf", float("inf"))]
)  # fmt: skip
def test_the_limit(monkeypatch, text, limit):
    monkeypatch.delenv("IMITATE_CACHE_GB", raising=False)
    if text is not None:
        monkeypatch.setenv("IMITATE_CACHE_GB", text)
    assert limit_bytes() == limit


@pytest.mark.parametrize("text", ["-1", "nan", "much"])
def test_no_limit(monkeypatch, text):
    monkeypatch.setenv("IMITATE_CACHE_GB", text)
    with pytest.raises(UserError, match=f"IMITATE_CACHE_GB is '{text}'"):
        limit_bytes()
