"""The bound of the cache, and files in use."""

import os
import shutil
import subprocess
import sys

import fsspec
import pytest

from imitate.data.remote import store
from imitate.data.remote.fetch import cached_path, fetch
from imitate.data.remote.store import hold, make_room, release, remote_folder
from imitate.errors import DatasetError

MB = 10**6


@pytest.fixture
def put(monkeypatch):
    """Fetches a file of so many megabytes under a key, used at a time in seconds."""
    monkeypatch.setenv("IMITATE_CACHE_GB", "0.01")

    def make(key, megabytes, used_at=None, held=False):
        url = f"memory://{key}/x.hdf5"
        fsspec.filesystem("memory").pipe(f"/{key}/x.hdf5", bytes(megabytes * MB))
        path = fetch(url, key, megabytes * MB)
        if used_at is not None:
            os.utime(path, (used_at, used_at))
        if not held:
            release(path)
        return path

    yield make
    for folder in remote_folder().iterdir():
        release(folder / "x.hdf5")


def test_files_that_were_not_read_for_longest_go(put):
    old, older, new = put("old", 4, 2000), put("older", 3, 1000), put("new", 2, 3000)

    last = put("last", 4)

    assert not older.exists()
    assert old.exists()
    assert new.exists()
    assert last.exists()


def test_several_processes_make_room_at_once(put, monkeypatch):
    """Another process removes what this one has just found."""
    put("old", 4, 2000), put("older", 3, 1000)
    size = store.size_of

    def late(folder):
        shutil.rmtree(remote_folder() / "old", ignore_errors=True)
        shutil.rmtree(remote_folder() / "older", ignore_errors=True)
        return size(folder)

    monkeypatch.setattr(store, "size_of", late)
    make_room({"new"}, 9 * MB)


def test_a_file_in_use_stays(put):
    used, old = put("used", 4, 1000, held=True), put("old", 4, 2000)

    put("new", 6)

    assert used.exists()
    assert not old.exists()


def test_a_file_that_another_process_uses_stays(put):
    path = put("theirs", 4, 1000)
    code = (
        "import sys; from pathlib import Path; from imitate.data.remote.store import hold; "
        f"print(hold(Path({str(path)!r})), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "True\n"
        with pytest.raises(DatasetError, match=r"of which 0.004 GB are in use, but 0.008 GB"):
            make_room({"x"}, 8 * MB)
        assert path.exists()
        other.stdin.close()
        other.wait()
    make_room({"x"}, 8 * MB)
    assert not path.exists()


def test_what_does_not_fit_is_refused_before_it_is_fetched(put):
    with pytest.raises(
        DatasetError,
        match=r"bounded at 0.01 GB.*raise IMITATE_CACHE_GB, or lower train.shard_window",
    ):
        put("large", 11)
    assert not (remote_folder() / "large" / "x.hdf5").exists()


def test_a_file_that_is_held_twice_is_released_twice(put):
    path = put("twice", 4, held=True)
    assert hold(path)
    release(path)
    with pytest.raises(DatasetError, match="in use"):
        make_room({"x"}, 8 * MB)
    release(path)
    make_room({"x"}, 8 * MB)
    assert not path.exists()


def test_what_is_not_there_is_not_held():
    assert not hold(cached_path("memory://a/x.hdf5", "nothing"))
