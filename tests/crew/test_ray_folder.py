"""Folders of private clusters, without Ray."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from imitate.crew import ray_cluster
from imitate.crew.ray_cluster import LOCK, PREFIX, private_folder

OWNER = """
import sys
from imitate.crew.ray_cluster import private_folder
with private_folder() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Folder for temporary folders of this process and of those that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def owner(place):
    """Process that has a private folder."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.folder = Path(process.stdout.readline().strip())
        yield process
        process.kill()


def age(folder, seconds):
    stamp = (folder / LOCK).stat().st_mtime - seconds
    os.utime(folder / LOCK, (stamp, stamp))


def test_a_folder_goes_with_its_owner(place):
    with private_folder() as folder:
        assert Path(folder).parent == place and os.stat(folder).st_mode & 0o77 == 0
    assert not list(place.iterdir())


def test_what_a_killed_owner_left_is_removed_by_the_next_one(place, owner):
    age(owner.folder, 2 * ray_cluster.YOUNG_S)
    with private_folder():
        assert owner.folder.is_dir()  # it is in use
    owner.kill()
    owner.wait()
    with private_folder() as folder:
        assert [path.name for path in place.iterdir()] == [Path(folder).name]


def test_young_and_foreign_folders_are_left_alone(place, owner, monkeypatch):
    owner.kill()
    owner.wait()
    unlocked = place / f"{PREFIX}old"
    unlocked.mkdir()
    (place / f"{PREFIX}link").symlink_to(owner.folder)
    with private_folder():
        pass
    assert owner.folder.is_dir() and unlocked.is_dir()
    age(owner.folder, 2 * ray_cluster.YOUNG_S)
    monkeypatch.setattr(os, "getuid", lambda: os.stat(place).st_uid + 1)
    with private_folder():
        pass
    assert owner.folder.is_dir()
