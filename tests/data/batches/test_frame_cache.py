"""Compressed images that stay in the file: decoded once, shared, remade when the file changes, never half there."""

import fcntl
import gc
import hashlib
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import time
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imitate.data import DatasetFile, DataSource, SequenceDataset
from imitate.data.batches import placement, store
from imitate.data.batches.placement import frames_folder
from imitate.data.file import cache
from imitate.errors import DatasetError
from tests.demo_files import episode, write_demos
from tests.forked import Forked
from tests.refusals import refused

KEYS = ("x", "camera", "depth")
LENGTHS = (5, 1, 9)


def write(path, storage, lengths=LENGTHS, seed=0):
    random = np.random.default_rng(seed)
    demos = []
    for length in lengths:
        base = random.integers(0, 200, (length, 1, 1, 3)) + np.arange(24)[:, None, None]
        obs = {
            "x": random.normal(size=(length, 2)),
            "camera": np.broadcast_to(base, (length, 24, 16, 3)).astype(np.uint8),
            "depth": random.random((length, 6, 5, 1), np.float32),
        }
        demos.append(episode(length, obs, random.uniform(-1, 1, (length, 3)), "timeout"))
    return write_demos(path, demos, {}, {"last": [len(lengths) - 1]}, image_storage=storage)


def dataset(path, mode="low_dim", **arguments):
    return SequenceDataset(path, KEYS, hdf5_cache_mode=mode, **arguments)


def cached():
    return sorted(frames_folder().iterdir()) if frames_folder().exists() else []


@pytest.mark.parametrize("storage", ["raw", "gzip", "lzf", "jpeg"])
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    frame_stack=st.integers(1, 3),
    seq_length=st.integers(1, 4),
    shuffle=st.randoms(use_true_random=False),
)
def test_windows_are_equal_whatever_the_storage_and_the_cache_mode(
    tmp_path, storage, lengths, frame_stack, seq_length, shuffle
):
    index = list(range(sum(lengths)))
    shuffle.shuffle(index)
    window = {"frame_stack": frame_stack, "seq_length": seq_length, "load_next_obs": True}
    wanted = dataset(write(tmp_path / "raw.hdf5", "raw", lengths), "all", **window)[index]
    path = write(tmp_path / f"{storage}.hdf5", storage, lengths)
    for mode in ("auto", "all", "low_dim", None):
        batch = dataset(path, mode, **window)[index]
        for group in ("obs", "next_obs"):
            for key in ("x", "depth"):
                assert torch.equal(batch[group][key], wanted[group][key]), mode
            off = (batch[group]["camera"].int() - wanted[group]["camera"].int()).abs()
            assert off.max() <= (4 if storage == "jpeg" else 0), mode
        assert torch.equal(batch["actions"], wanted["actions"])


@pytest.mark.parametrize("storage", ["gzip", "lzf", "jpeg"])
def test_decoded_once_then_read_from_there(tmp_path, storage):
    path = write(tmp_path / "a.hdf5", storage)
    first = dataset(path)
    camera, depth = cached()
    assert camera.name.startswith("a-obs-camera-") and camera.suffix == ".frames"
    assert (camera.stat().st_size, depth.stat().st_size) == (15 * 24 * 16 * 3, 15 * 6 * 5 * 4)
    assert first.storage_words == [
        first.store.placement.words,
        f"obs/camera was decoded once into {camera} (17.3 kB)",
        f"obs/depth was decoded once into {depth} (1.8 kB)",
    ]
    with DatasetFile(path) as file:
        frames = [file.read(demo, "obs/camera") for demo in file.demos()]
        demos, content = file.demos(), file.fingerprint()
    named = [1, content, path.stat().st_mtime_ns, "obs/camera", [24, 16, 3], "uint8", demos]
    digest = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()
    assert camera.name == f"a-obs-camera-{digest[:16]}.frames"
    assert camera.read_bytes() == np.concatenate(frames).tobytes()
    times = camera.stat().st_mtime_ns
    second = dataset(path)
    assert second.storage_words[1] == f"obs/camera is read decoded from {camera} (17.3 kB)"
    assert camera.stat().st_mtime_ns == times
    assert cached() == [camera, depth]
    assert torch.equal(second[[3, 14]]["obs"]["camera"], first[[3, 14]]["obs"]["camera"])
    # It really is read: other bytes there are other pixels.
    camera.write_bytes(b"\x2a" * camera.stat().st_size)
    assert (dataset(path)[[7]]["obs"]["camera"] == 42).all()


def test_what_is_in_ram_or_not_compressed_needs_no_cache(tmp_path):
    dataset(write(tmp_path / "raw.hdf5", "raw"))
    dataset(write(tmp_path / "a.hdf5", "jpeg"), "all")
    dataset(write(tmp_path / "b.hdf5", "jpeg"), "auto")
    assert cached() == []


def test_auto_decodes_what_does_not_fit(tmp_path, monkeypatch):
    path = write(tmp_path / "a.hdf5", "jpeg")
    # The camera takes 17,280 bytes, the depth 1,800, the vectors 420.
    monkeypatch.setattr(store, "free_memory", lambda: 10_000)
    partly = dataset(path, "auto")
    assert set(partly.store.apart) == {"obs/depth"}
    assert [file.name.split("-")[2] for file in cached()] == ["camera"]
    monkeypatch.setattr(store, "free_memory", lambda: 24_400)
    assert set(dataset(path, "auto").store.apart) == {"obs/camera", "obs/depth"}
    monkeypatch.setattr(store, "free_memory", lambda: 17_000)
    with pytest.raises(DatasetError, match="19.5 kB of RAM and 17 kB are free"):
        dataset(path, "all")


def test_another_content_or_other_demos_are_another_cache(tmp_path):
    path = write(tmp_path / "a.hdf5", "gzip")
    dataset(path)
    assert len(cached()) == 2
    only_last = dataset(path, filter_by_attribute="last")
    assert len(cached()) == 4
    last_of_all = dataset(path, "all")[list(range(6, 15))]["obs"]["camera"]
    assert torch.equal(only_last[list(range(9))]["obs"]["camera"], last_of_all)
    write(path, "gzip", seed=1)
    same_as_in_ram(path)
    assert len(cached()) == 6


def test_several_files(tmp_path):
    paths = [write(tmp_path / "a.hdf5", "jpeg"), write(tmp_path / "b.hdf5", "raw", seed=1)]
    sources = [DataSource(paths[1]), DataSource(paths[0], "last"), DataSource(paths[0])]
    index = [0, 14, 15, 20, 23, 24, 30, 38]
    wanted = dataset(sources, "all", seq_length=3)[index]["obs"]["camera"]
    assert torch.equal(dataset(sources, seq_length=3)[index]["obs"]["camera"], wanted)
    assert len(cached()) == 4


# ---- its size ------------------------------------------------------------------------------------


def bounded_at(monkeypatch, size):
    monkeypatch.setenv("IMITATE_CACHE_GB", str(size / 1e9))


def test_what_was_not_read_for_longest_gives_way_unless_it_is_in_use(tmp_path, monkeypatch):
    paths = [write(tmp_path / f"{name}.hdf5", "jpeg") for name in "abc"]
    in_use = dataset(paths[0])
    dataset(paths[1])  # both arrays of a file take 19,080 bytes
    assert [file.name[0] for file in cached()] == ["a", "a", "b", "b"]
    bounded_at(monkeypatch, 2.5 * 19_080)
    dataset(paths[2])
    # the camera of b made room enough
    assert [file.name.split("-")[::2][:2] for file in cached()] == [
        ["a", "camera"], ["a", "depth"], ["b", "depth"], ["c", "camera"], ["c", "depth"]
    ]  # fmt: skip
    del in_use
    gc.collect()
    bounded_at(monkeypatch, 1.5 * 19_080)
    dataset(paths[1])
    assert [file.name[0] for file in cached()] == ["b", "b", "c"]


def test_what_was_read_last_stays(tmp_path, monkeypatch):
    first, second, third = (write(tmp_path / f"{name}.hdf5", "jpeg") for name in "abc")
    dataset(first), dataset(second)
    gc.collect()
    for file in cached():  # a was read two hours ago, b one hour ago
        hours = {"a": 2, "b": 1}[file.name[0]]
        os.utime(file, (time.time() - 3600 * hours, time.time() - 9 * 3600))
    assert "is read decoded" in dataset(first).storage_words[1]
    gc.collect()
    bounded_at(monkeypatch, 2.01 * 19_080)
    dataset(third)
    assert [file.name[0] for file in cached()] == ["a", "a", "c", "c"]


def test_what_does_not_fit_the_bound_is_decoded_for_each_batch(tmp_path, monkeypatch):
    bounded_at(monkeypatch, 10_000)
    assert same_as_in_ram(write(tmp_path / "a.hdf5", "jpeg")) == (
        f"obs/camera is decoded for each batch, slowly: {frames_folder()}: 17.3 kB do not fit, 10 kB are left of "
        "IMITATE_CACHE_GB; raise IMITATE_CACHE_GB"
    )
    assert [file.name.split("-")[2] for file in cached()] == ["depth"]


def test_room_is_what_those_in_use_leave(tmp_path, monkeypatch):
    in_use = dataset(write(tmp_path / "a.hdf5", "jpeg"))  # 19,080 bytes
    path = write(tmp_path / "b.hdf5", "jpeg")
    bounded_at(monkeypatch, 19_080 + 17_279)
    assert ": 17.3 kB do not fit, 17.3 kB are left of IMITATE_CACHE_GB" in same_as_in_ram(path)
    bounded_at(monkeypatch, 19_080 + 17_280)
    assert "obs/camera was decoded once" in dataset(path).storage_words[1]
    assert len(in_use) == 15


def test_room_to_the_byte(tmp_path, monkeypatch):
    path, free = write(tmp_path / "a.hdf5", "jpeg"), 10**9 + 17_280
    monkeypatch.setattr(
        placement.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free - 1)
    )
    assert "17.3 kB do not fit, 1 GB are free" in same_as_in_ram(path)
    monkeypatch.setattr(placement.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    old = frames_folder() / "old.frames"
    old.write_bytes(b"x" * 10)
    bounded_at(monkeypatch, 17_280)  # all of the cache, which others leave
    said = dataset(path).storage_words
    assert "obs/camera was decoded once" in said[1] and not old.exists()
    assert ": 1.8 kB do not fit, 0 kB are left of IMITATE_CACHE_GB" in said[2]
    bounded_at(monkeypatch, 1000)
    in_use = dataset(path)  # more than may be there
    assert ": 1.8 kB do not fit, 0 kB are left of IMITATE_CACHE_GB" in in_use.storage_words[2]


def test_what_is_left_of_a_longer_file_is_cut_off_and_progress_is_shown(tmp_path, monkeypatch):
    path = write(tmp_path / "a.hdf5", "jpeg")
    dataset(path)
    camera, _ = cached()
    content, bars = camera.read_bytes(), []
    camera.unlink()
    camera.with_name(f"{camera.name}.partial").write_bytes(b"x" * 100_000)
    bar = placement.ProgressBar
    monkeypatch.setattr(placement, "ProgressBar", lambda **how: bars.append(how) or bar(**how))
    dataset(path)
    assert camera.read_bytes() == content
    how = {
        "total": 15,
        "desc": "decoding obs/camera",
        "unit": " frames",
        "delay": 2,
        "disable": None,
    }
    assert bars == [how]


def test_a_hold_ends_with_its_object_and_does_not_travel(tmp_path):
    file = tmp_path / "a.frames"
    file.write_bytes(b"x" * 10)
    hold = cache.Hold(file)
    copy = pickle.loads(pickle.dumps(hold))
    assert cache.remove_oldest([file], 0) == 10
    del hold
    assert cache.remove_oldest([file], 0) == 0
    assert not file.exists()
    del copy


def test_a_file_that_another_process_has_removed_is_not_made_anew(tmp_path, monkeypatch):
    file = tmp_path / "a.hdf5"
    hold = cache.Hold(file)
    assert not file.exists()  # an empty file would be taken for a conversion
    locked, refused = cache.locked, []

    def too_late(path, **arguments):
        path.unlink()
        try:
            return locked(path, **arguments)
        except FileNotFoundError:
            refused.append(path)
            raise

    monkeypatch.setattr(cache, "locked", too_late)
    file.write_bytes(b"x")
    cache.remove_oldest([file], 0)
    assert refused == [file]
    del hold


def test_what_a_killed_process_has_left_gives_way(tmp_path, monkeypatch):
    frames_folder().mkdir(parents=True)
    left = frames_folder() / "killed.frames.partial"
    left.write_bytes(b"x" * 10_000)
    bounded_at(monkeypatch, 20_000)
    dataset(write(tmp_path / "a.hdf5", "jpeg"))
    assert not left.exists()
    assert len(cached()) == 2


# ---- when it cannot be made ----------------------------------------------------------------------


def same_as_in_ram(path):
    slow = dataset(path, seq_length=3)
    wanted = dataset(path, "all", seq_length=3)[[0, 4, 13]]["obs"]["camera"]
    assert torch.equal(slow[[0, 4, 13]]["obs"]["camera"], wanted)
    return slow.storage_words[1]


def full(folder):
    return SimpleNamespace(total=10**12, used=10**12 - 9 * 10**8, free=9 * 10**8)


def raising(error):
    def fail(*args):
        raise error

    return fail


@pytest.mark.parametrize(
    ("module", "name", "change", "words"),
    [
        (placement.shutil, "disk_usage", full, "17.3 kB do not fit, 900 MB are free"),
        (os, "fsync", raising(OSError(28, "No space left")), "No space left"),
        (fcntl, "flock", raising(OSError(37, "No locks available")), "No locks available"),
        (os.environ, "IMITATE_CACHE", __file__, "Not a directory"),
    ],
)
def test_where_it_cannot_be_made_images_are_decoded_each_time(
    tmp_path, monkeypatch, module, name, change, words
):
    path = write(tmp_path / "a.hdf5", "jpeg")
    with monkeypatch.context() as patch:
        (patch.setitem if module is os.environ else patch.setattr)(module, name, change)
        said = same_as_in_ram(path)
        assert said.startswith(f"obs/camera is decoded for each batch, slowly: {frames_folder()}: ")
        assert words in said and said.endswith("; set IMITATE_CACHE to a folder with room")
    assert {file.suffix for file in cached()} <= {".partial"}


def test_a_damaged_frame_is_named_and_no_cache_is_left(tmp_path):
    path = write(tmp_path / "a.hdf5", "jpeg")
    with h5py.File(path, "a") as file:
        file["data/demo_2/obs/camera"][3] = np.zeros(9, np.uint8)
    for mode in ("low_dim", "all"):
        with refused("'demo_2': 'obs/camera' at step 3 cannot be decoded"):
            dataset(path, mode)
    assert cached() == []


def test_a_cache_that_went_away_is_told(tmp_path):
    reading = dataset(write(tmp_path / "a.hdf5", "jpeg"))
    shutil.rmtree(frames_folder())
    with pytest.raises(DatasetError, match="cannot be opened .*start the training again"):
        reading[[0]]


@pytest.mark.parametrize("variable", ["IMITATE_CACHE", "XDG_CACHE_HOME", "HOME"])
def test_the_folder(tmp_path, monkeypatch, variable):
    for name in ("IMITATE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    below = {"IMITATE_CACHE": "frames", "XDG_CACHE_HOME": "imitate/frames"}
    assert frames_folder() == tmp_path / below.get(variable, ".cache/imitate/frames")


# ---- several processes ---------------------------------------------------------------------------


def decode(say, path, may_go_on):
    """Read all images of the file; say each demo that is decoded, and that the lock is wanted."""
    real, locked = placement.read_pieces, placement.locked

    def told(file, demo, *args):
        say(f"decoding {demo}")
        yield from real(file, demo, *args)
        may_go_on(demo)

    def wanted(*args, **options):
        say("at the lock")
        return locked(*args, **options)

    placement.read_pieces, placement.locked = told, wanted
    decoded = SequenceDataset(path, ("camera",), hdf5_cache_mode="low_dim")[EVERY]
    say(int(decoded["obs"]["camera"].sum()))


EVERY = list(range(15))


def test_of_two_processes_one_decodes_and_the_other_waits(tmp_path):
    path = write(tmp_path / "a.hdf5", "jpeg")
    go = multiprocessing.get_context("fork").Event()
    with Forked(decode, path, lambda demo: go.wait()) as first:
        assert [first.line(), first.line()] == ["at the lock", "decoding demo_0"]
        with Forked(decode, path, lambda demo: None) as second:
            assert second.line() == "at the lock"
            go.set()
            total = str(int(dataset(path, "all")[EVERY]["obs"]["camera"].sum()))
            assert first.rest() == ["decoding demo_1", "decoding demo_2", total]
            assert second.rest() == [total]
    assert [file.suffix for file in cached()] == [".frames"]


def test_a_killed_process_leaves_no_half_cache(tmp_path):
    path = write(tmp_path / "a.hdf5", "jpeg")
    with Forked(decode, path, lambda demo: demo == "demo_1" and signal.pause()) as process:
        assert [process.line() for _ in range(3)][1:] == ["decoding demo_0", "decoding demo_1"]
    assert [file.suffix for file in cached()] == [".partial"]
    wanted = dataset(path, "all")[EVERY]["obs"]["camera"]
    assert torch.equal(dataset(path)[EVERY]["obs"]["camera"], wanted)
    assert {file.suffix for file in cached()} == {".frames"}
