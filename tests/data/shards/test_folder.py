"""Folders of shards: chosen demos, digests, and files on this machine and behind a URL."""

import hashlib
import threading
import time

import fsspec
import numpy as np
import pytest

from imitate.data.shards import folder as module
from imitate.data.shards.folder import local_file, shards_at
from imitate.data.shards.index import write_index
from tests.demo_files import episode, write_demos
from tests.refusals import refused


@pytest.fixture
def folder(tmp_path):
    """Two shards: demos a of 2 steps, and b of 1 step, which alone is in the mask m; and c of 3 steps."""
    for name, lengths, names, masks in (
        ("000.hdf5", (2, 1), "ab", {"m": [1]}),
        ("001.hdf5", (3,), "c", {}),
    ):
        demos = [episode(length, {"s": np.zeros((length, 1))}) for length in lengths]
        write_demos(tmp_path / "shards" / name, demos, names=names, filter_keys=masks)
    write_index(tmp_path / "shards")
    return tmp_path / "shards"


@pytest.fixture
def bucket(folder):
    """The URL of a copy of the folder."""
    files, url = fsspec.filesystem("memory"), f"memory://{folder.parent.name}"
    for path in folder.iterdir():
        files.pipe(f"/{folder.parent.name}/{path.name}", path.read_bytes())
    return url


@pytest.mark.parametrize(
    ("mask", "limit", "demos"),
    [
        (None, None, [("000.hdf5", "ab"), ("001.hdf5", "c")]),
        ("m", None, [("000.hdf5", "b")]),
        (None, 0, []),
        (None, 1, [("000.hdf5", "a")]),
        (None, 2, [("000.hdf5", "ab")]),
        (None, 3, [("000.hdf5", "ab"), ("001.hdf5", "c")]),
        ("m", 1, [("000.hdf5", "b")]),
    ],
)
def test_parts(folder, mask, limit, demos):
    parts = shards_at(folder).parts(mask, limit)
    assert [(shard.file, "".join(names)) for shard, names in parts] == demos


def test_a_mask_that_no_shard_has(folder):
    with refused(f"{folder}: there is no filter key 'n'; "):
        shards_at(folder).parts("n")


def test_digests(folder):
    files = [folder / "000.hdf5", folder / "001.hdf5"]
    lines = (f"{f.name} {hashlib.sha256(f.read_bytes()).hexdigest()}\n" for f in files)
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    size = sum(file.stat().st_size for file in files)
    assert shards_at(folder).fingerprint() == {
        **{"size_bytes": size, "num_demos": 3, "num_steps": 6, "sha256": digest},
        **{"content_version": 1, "content_sha256": digest},
    }


def test_files_of_this_machine(folder):
    shards = shards_at(folder)
    listed, files = shards.index.shards, [folder / "000.hdf5", folder / "001.hdf5"]
    assert shards.files.local(listed) == files and not shards.is_remote
    assert shards.files.local(listed[1:]) == files[1:]
    shards.files.release(listed)
    size = files[1].stat().st_size
    files[1].write_bytes(files[1].read_bytes()[:-1])
    with refused(
        f"{files[1]}: has {size - 1} bytes, but {size} according to index.json|{folder} --overwrite"
    ):
        shards.files.local(listed)
    files[0].unlink()
    with refused(f"{files[0]}: cannot be read (No such file or directory), but index.json names"):
        shards.files.local(listed)


def test_where_shards_are(folder, tmp_path):
    found = shards_at(folder)
    assert found.place == str(folder)
    assert shards_at(str(folder)) is found and shards_at(folder / "index.json") is found
    write_index(folder, [folder / "001.hdf5"])
    assert [shard.file for shard in shards_at(folder).index.shards] == ["001.hdf5"]
    assert shards_at(tmp_path) is None and shards_at(folder / "000.hdf5") is None
    assert shards_at("memory://x/a.hdf5") is None and shards_at("memory://x/a.h5") is None
    (folder / "index.json").write_text('{"format": "imitate-shards"')
    with refused(f"{folder / 'index.json'}: is cut short or not JSON"):
        shards_at(folder)
    (folder / "index.json").unlink()
    (folder / "index.json").mkdir()
    with refused(f"{folder / 'index.json'}: cannot be read ("):
        shards_at(folder)


def test_files_behind_a_url(folder, bucket, monkeypatch):
    shards, bars, received = shards_at(bucket), [], []

    class Bar(module.DownloadBar):
        def __init__(self, *name, **how):
            bars.append((*name, how))
            super().__init__(*name, **how)

        def update(self, count=1):
            received.append(count)

    monkeypatch.setattr(module, "DownloadBar", Bar)
    assert shards.is_remote and shards.place == bucket
    listed = shards.index.shards
    paths = shards.files.local(listed)
    for path, shard in zip(paths, listed, strict=True):
        assert path.read_bytes() == (folder / shard.file).read_bytes()
        assert (path.name, path.parent.name) == (shard.file, shard.sha256)
    assert shards.files.local(listed) == paths and len(bars) == 1
    size = sum(shard.bytes for shard in listed)
    how = {"total": size, "delay": 2, "disable": None}
    assert bars == [(f"fetching {bucket.rpartition('/')[2]}", how)] and sum(received) == size
    released = []
    monkeypatch.setattr(module, "release", released.append)
    shards.files.release(listed)
    assert released == paths
    file = local_file(f"{bucket}/000.hdf5")
    assert file.read_bytes() == (folder / "000.hdf5").read_bytes()
    assert local_file(folder) == folder
    assert bars[1:] == [("fetching 000.hdf5", {"delay": 2})]


def test_a_download_that_is_stopped_or_fails_holds_nothing(bucket, monkeypatch):
    shards, released, stopped = shards_at(bucket), [], threading.Event()
    first, second = shards.index.shards
    held = shards.files.local([first])
    monkeypatch.setattr(module, "release", released.append)
    stopped.set()
    with pytest.raises(InterruptedError):
        shards.files.local([first, second], stopped)
    assert released == held
    fsspec.filesystem("memory").rm(f"/{bucket.rpartition('/')[2]}/001.hdf5")
    with refused("001.hdf5: there is no such file"):
        shards.files.local([first, second])
    assert released == held * 2
    released.clear()
    monkeypatch.setattr(module, "hold", lambda path: False)
    with refused("001.hdf5: there is no such file"):
        shards.files.local([first, second])
    assert released == held  # which was there already
    missing, room = [], []
    monkeypatch.setattr(module, "make_room", lambda *words: room.append(words))
    monkeypatch.setattr(module, "fetch", lambda *words: missing.append(words[:4]))
    shards.files.local([first, second], threading.Event())
    assert room == [({first.sha256, second.sha256}, first.bytes + second.bytes)]
    assert sorted(missing) == sorted(
        (f"{bucket}/{s.file}", s.sha256, s.bytes, s.sha256) for s in (first, second)
    )


def test_what_still_comes_while_another_download_fails_is_not_held(bucket, monkeypatch):
    shards, released, begun = shards_at(bucket), [], threading.Event()
    first, second = shards.index.shards

    def fetch(url, *rest):
        if url.endswith(first.file):
            begun.wait(60)
            raise OSError("gone")
        begun.set()
        time.sleep(0.2)

    monkeypatch.setattr(module, "hold", lambda path: False)
    monkeypatch.setattr(module, "fetch", fetch)
    monkeypatch.setattr(module, "release", lambda path: released.append(path.name))
    with pytest.raises(OSError, match="gone"):
        shards.files.local([first, second])
    assert released == [second.file]
