"""Cutting of files into shards."""

import hashlib
import os

import fsspec
import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.edit import shard as module
from imitate.data.edit.shard import PARTIAL_NAME, place_of, shard_files
from imitate.data.shards.index import ShardIndex
from imitate.errors import DatasetError
from tests.demo_files import contents


def test_shards_hold_the_same_arrays_attributes_and_filter_keys(demo_file, tmp_path, monkeypatch):
    masks = {"train": [0, 2, 4], "valid": [1]}
    whole = demo_file(num_demos=5, length=[4, 6, 5, 7, 3], image=True, filter_keys=masks)

    told, synced = [], []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_size))
    index = shard_files([whole], tmp_path / "out", 2, on_demo=lambda *at: told.append(at))

    assert told == [(2, 5), (4, 5), (5, 5)]
    files = [tmp_path / "out" / name for name in ("000.hdf5", "001.hdf5", "002.hdf5")]
    assert {path.stat().st_size for path in files} <= set(synced)
    assert sorted((tmp_path / "out").iterdir()) == [*files, tmp_path / "out" / "index.json"]
    joined, attrs, masks = {}, {}, {}
    for path in files:
        arrays, own, held, file_attrs = contents(path)
        joined |= arrays
        attrs |= own
        assert '"Lift"' in file_attrs["env_args"]
        assert file_attrs["total"] == sum(demo["num_samples"] for demo in own.values())
        for key, demos in held.items():
            masks.setdefault(key, []).extend(demos)
    wanted, *rest = contents(whole)
    assert rest[:2] == [attrs, masks]
    assert list(joined) == list(wanted)
    for place, value in wanted.items():
        np.testing.assert_array_equal(joined[place], value)
        assert joined[place].dtype == value.dtype
    assert [demo for shard in index.shards for demo in shard.demos] == list(attrs)
    assert ShardIndex.parse((tmp_path / "out" / "index.json").read_bytes(), "") == index


def test_demos_of_several_files_are_numbered_anew_where_names_meet(demo_file, tmp_path):
    masks = {"train": [0]}
    files = [demo_file(f"{i}.hdf5", num_demos=3, seed=i, filter_keys=masks) for i in range(2)]
    for number, path in enumerate(files):
        with h5py.File(path, "r+") as file:
            file.attrs["root"] = number
    index = shard_files(files, tmp_path / "out", 4)

    names = [f"demo_{number}" for number in range(6)]
    assert [shard.demos for shard in index.shards] == [names[:4], names[4:]]
    assert [shard.filter_keys for shard in index.shards] == [{"train": ["demo_0", "demo_3"]}, {}]
    for number, first in (("000", 0), ("001", 1)):  # those of the shard's first demo
        with h5py.File(tmp_path / "out" / f"{number}.hdf5") as file:
            assert file.attrs["root"] == first
    with DatasetFile(files[1]) as old, DatasetFile(tmp_path / "out" / "001.hdf5") as new:
        np.testing.assert_array_equal(old.read("demo_2", "actions"), new.read("demo_5", "actions"))


def test_a_call_that_was_cut_short_is_resumed(demo_file, tmp_path, monkeypatch):
    whole, out = demo_file(num_demos=5), tmp_path / "out"
    write, written = module.write_shard, []

    def cut_short(part, path):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path.name)
        write(part, path)

    monkeypatch.setattr(module, "write_shard", cut_short)
    with pytest.raises(KeyboardInterrupt):
        shard_files([whole], out, 1)
    assert not (out / "index.json").exists()
    kept = (out / "001.hdf5").stat().st_mtime_ns
    monkeypatch.setattr(module, "write_shard", write)

    index = shard_files([whole], out, 1)

    assert (out / "001.hdf5").stat().st_mtime_ns == kept
    assert [shard.file for shard in index.shards] == [f"00{i}.hdf5" for i in range(5)]
    assert not (out / PARTIAL_NAME).exists()
    whole_again = tmp_path / "again"
    assert shard_files([whole], whole_again, 1) == index


def test_nothing_is_overwritten(demo_file, tmp_path):
    whole, out = demo_file(num_demos=3), tmp_path / "out"
    shard_files([whole], out, 2)
    with pytest.raises(DatasetError, match=r"index.json: exists already"):
        shard_files([whole], out, 2)
    (out / "index.json").unlink()
    with pytest.raises(DatasetError, match=r"000.hdf5: exists already"):
        shard_files([whole], out, 2)


def test_unfinished_shards_of_another_plan_are_refused(demo_file, tmp_path, monkeypatch):
    whole, out = demo_file(num_demos=3), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(module, "index_of", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            shard_files([whole], out, 2)

    with pytest.raises(DatasetError, match="unfinished shards of other files"):
        shard_files([whole], out, 1)


def test_a_full_disk_is_said_in_one_line(demo_file, tmp_path, monkeypatch):
    whole, out = demo_file(num_demos=3), tmp_path / "out"

    def full(part, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_shard", full)
    with pytest.raises(DatasetError, match=r"No space left on device.*after 0 finished shards"):
        shard_files([whole], out, 2)


def test_files_that_hold_other_arrays_are_refused(demo_file, tmp_path):
    files = [demo_file("a.hdf5"), demo_file("b.hdf5", image=True)]

    other = demo_file("c.hdf5")
    with h5py.File(other, "r+") as file:
        file["data"].attrs["env_args"] = '{"env_name": "Door", "type": 1, "env_kwargs": {}}'
    for second, words in ((files[1], "agentview_image"), (other, "Door")):
        with pytest.raises(DatasetError, match=words):
            shard_files([files[0], second], tmp_path / "out", 2)
    assert not (tmp_path / "out").exists()


def test_a_damaged_source_leaves_no_index(demo_file, tmp_path):
    whole = demo_file(num_demos=3)
    with h5py.File(whole, "r+") as file:
        del file["data/demo_2"]
        file["data"].create_group("demo_2")

    with pytest.raises(DatasetError):
        shard_files([whole], tmp_path / "out", 2)
    assert not (tmp_path / "out" / "index.json").exists()


# ---- to a URL ------------------------------------------------------------------------------------


def test_shards_are_uploaded_and_hold_what_a_folder_holds(demo_file, tmp_path):
    whole = demo_file(num_demos=5, filter_keys={"train": [0, 2]})
    index = shard_files([whole], "memory://uploads/demos", 2)

    bucket = fsspec.filesystem("memory")
    names = [path.rpartition("/")[2] for path in bucket.ls("/uploads/demos", detail=False)]
    assert sorted(names) == ["000.hdf5", "001.hdf5", "002.hdf5", "index.json"]
    assert ShardIndex.parse(bucket.cat("/uploads/demos/index.json"), "") == index
    local = shard_files([whole], tmp_path / "local", 2)
    assert [s.demos for s in index.shards] == [s.demos for s in local.shards]
    for shard in index.shards:
        content = bucket.cat(f"/uploads/demos/{shard.file}")
        assert hashlib.sha256(content).hexdigest() == shard.sha256
    with pytest.raises(DatasetError, match=r"memory://uploads/demos/index.json: exists already"):
        shard_files([whole], "memory://uploads/demos", 2)


def test_an_upload_that_was_cut_short_is_resumed(demo_file, monkeypatch):
    whole, bucket = demo_file(num_demos=4), fsspec.filesystem("memory")
    put, uploaded = type(bucket).put_file, []

    def breaks(self, local, remote, **kwargs):
        if len(uploaded) == 2:
            raise ConnectionError("broken pipe")
        uploaded.append(remote)
        put(self, local, remote, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(type(bucket), "put_file", breaks)
        words = r"memory://cut/demos: cannot be written \(broken pipe\)"
        with pytest.raises(DatasetError, match=words):
            shard_files([whole], "memory://cut/demos", 1)
    assert not bucket.exists("/cut/demos/index.json")
    before = bucket.created("/cut/demos/001.hdf5")

    index = shard_files([whole], "memory://cut/demos", 1)
    assert len(index.shards) == 4
    assert bucket.created("/cut/demos/001.hdf5") == before
    for shard in index.shards:
        content = bucket.cat(f"/cut/demos/{shard.file}")
        assert hashlib.sha256(content).hexdigest() == shard.sha256


@pytest.mark.parametrize("kind", ["folder", "memory", "file"])
def test_places_of_shards(tmp_path, kind):
    urls = {"memory": f"memory://{tmp_path.name}/far/out", "file": f"file://{tmp_path}/far/out"}
    out = urls.get(kind, tmp_path / "far" / "out")
    with place_of(out) as place:
        assert place.name == str(out)
        assert place.text("a.json") is None and place.shards() == []
        place.put("a.json", "one")
        place.put("a.json", "two")
        assert place.text("a.json") == "two"
        for name in ("b.hdf5", "a.hdf5", "c.txt"):
            file = place.workplace() / name
            file.write_text(name)
            place.keep(file)
            assert file.exists() is (kind == "folder")
        assert place.shards() == ["a.hdf5", "b.hdf5"] and place.text("b.hdf5") == "b.hdf5"
        place.remove("a.json")
        assert place.text("a.json") is None


def test_an_error_without_words_has_its_name(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ConnectionError

    with place_of(f"memory://{tmp_path.name}") as place:
        monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", fail)
        with pytest.raises(DatasetError, match=r"cannot be written \(ConnectionError\): check the"):
            place.text("a")


def test_an_http_server_is_not_written_to(demo_file):
    for url in ("https://host/demos", "http://host/demos"):
        with pytest.raises(DatasetError, match=f"{url}: HTTP servers are read only"):
            shard_files([demo_file()], url, 2)


def test_a_shard_is_kept_where_no_folder_is_yet_and_faults_of_data_are_raised(tmp_path):
    with place_of(f"file://{tmp_path}/far/out") as place:
        file = place.workplace() / "a.hdf5"
        file.write_text("a")
        place.keep(file)
        assert (tmp_path / "far" / "out" / "a.hdf5").read_text() == "a"
        with pytest.raises(DatasetError, match="^own words$"), place._writing():
            raise DatasetError("own words")
