"""Copies with changes."""

import errno

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile, SequenceDataset
from imitate.data.edit.rewrite import (
    FileChanges,
    Rows,
    check_keys,
    copying,
    is_per_step,
    rewrite,
)
from imitate.errors import DatasetError
from tests.demo_files import episode, write_demos


def copied(path, tmp_path, changes):
    out = tmp_path / "copy.hdf5"
    out.unlink(missing_ok=True)
    rewrite(path, out, changes)
    return out


def test_without_changes_everything_is_there(demo_file, tmp_path):
    path = demo_file(num_demos=3, image=True, filter_keys={"m": [0, 2]}, names=["b10", "b9", "x y"])
    with h5py.File(path, "r+") as file:
        file.attrs["root"] = 1
        file["beside/numbers"] = np.arange(3)
        file["data"].attrs["labels"] = ["a", "b"]
        file["data/b9"].attrs["model_file"] = "x" * 100_000
        file["data/b9/info/scalar"] = 3.5
    out = copied(path, tmp_path, FileChanges())
    with h5py.File(path) as old, h5py.File(out) as new:
        names = []
        old.visit(names.append)
        for name in ["/", *names]:
            assert old[name].attrs.keys() == new[name].attrs.keys()
            assert all(np.all(value == new[name].attrs[k]) for k, value in old[name].attrs.items())
            if isinstance(old[name], h5py.Dataset):
                np.testing.assert_array_equal(new[name][()], old[name][()])
            else:
                assert old[name].keys() == new[name].keys()


def test_rows_and_values_go_together_over_many_pieces(demo_file, tmp_path, monkeypatch):
    monkeypatch.setattr("imitate.data.edit.rewrite._PIECE_BYTES", 400)
    path = demo_file(num_demos=2, length=30, image=True)
    with h5py.File(path, "r+") as file:
        file["data/demo_1/datagen_info/pose"] = np.arange(30)
        file["data/demo_1/cloud"] = np.arange(40)  # longer than the demo: not by step
    seen, done = np.array([0, 1, 5, 6, 7, 29]), np.array([1, 2, 3, 8, 9, 10])
    changes = FileChanges(
        rows={"demo_1": Rows(seen, done)},
        values={"obs/agentview_image": lambda images: images[:, ::-1].astype(np.float32)},
    )
    out = copied(path, tmp_path, changes)
    with h5py.File(path) as old, h5py.File(out) as new:
        images = old["data/demo_1/obs/agentview_image"][()]
        np.testing.assert_array_equal(new["data/demo_1/obs/agentview_image"], images[seen][:, ::-1])
        assert new["data/demo_1/obs/agentview_image"].dtype == np.float32
        np.testing.assert_array_equal(
            new["data/demo_1/actions"], old["data/demo_1/actions"][()][done]
        )
        np.testing.assert_array_equal(new["data/demo_0/actions"], old["data/demo_0/actions"])
        assert new["data/demo_0/obs/agentview_image"].shape == (30, 8, 6, 3)
        assert new["data/demo_1/datagen_info/pose"][()].tolist() == done.tolist()
        assert new["data/demo_1/cloud"].shape == (40,)
        assert new["data/demo_1"].attrs["num_samples"] == 6
        assert new["data"].attrs["total"] == 36


def test_copies_can_be_trained_on(demo_file, tmp_path):
    path = demo_file(num_demos=3, filter_keys={"train": [0, 1]})
    out = copied(
        path, tmp_path, FileChanges(demos={"demo_1", "demo_2"}, rename={"obs/object": "obs/o"})
    )
    dataset = SequenceDataset(out, obs_keys=["o"], filter_by_attribute="train")
    assert (len(dataset), dataset.demos) == (12, ["demo_1"])


def test_a_damaged_demo_is_named_and_others_can_be_saved(demo_file, tmp_path):
    path = demo_file(num_demos=3, length=50)
    with h5py.File(path, "r+") as file:
        demo = file["data/demo_1"]
        values = demo["obs/object"][()]
        del demo["obs/object"]
        demo.create_dataset("obs/object", data=values, chunks=(10, 10), fletcher32=True)
        at = demo["obs/object"].id.get_chunk_info(1).byte_offset
    with path.open("r+b") as raw:
        raw.seek(at)
        raw.write(b"\xff\x01")
    shifted = Rows(np.arange(49), np.arange(49))
    with pytest.raises(DatasetError, match="demo 'demo_1' cannot be read"):
        copied(path, tmp_path, FileChanges(rows={"demo_1": shifted}))
    out = copied(path, tmp_path, FileChanges(demos={"demo_0", "demo_2"}))
    with DatasetFile(out) as file:
        assert file.demos() == ["demo_0", "demo_2"]


def test_attributes_chunks_and_lengths_of_a_copy(demo_file, tmp_path):
    path = demo_file(num_demos=2, length=30)
    with h5py.File(path, "r+") as file:
        file["data"].attrs.update({"old": 1, "kept": 2})
        demo = file["data/demo_1"]
        sizes = {"small": (4, 2), "exact": (13, 1), "large": (14, 2), "plain": None}
        for name, chunks in sizes.items():
            demo.create_dataset(name, data=np.arange(60).reshape(30, 2), chunks=chunks)
        packed = {"compression": "gzip", "compression_opts": 7, "shuffle": True}
        demo.create_dataset("packed", data=np.arange(60).reshape(30, 2), **packed)
        demo["packed"].attrs["unit"] = "m"
        demo["obs/short"] = np.arange(20)  # shorter than the demo
        del file["data/demo_0/actions"]
        file["data/demo_0/actions"] = 3.0  # no array: a demo without steps
    rows = np.array([3, 4, 9, 20, *range(21, 30)])
    attrs = {"old": None, "none": None, "new": "x"}
    out = copied(path, tmp_path, FileChanges(rows={"demo_1": Rows(rows, rows)}, attrs=attrs))
    with h5py.File(out) as new:
        found = new["data"].attrs
        assert (found["new"], found["kept"], found["total"]) == ("x", 2, 13)
        assert not {"old", "none"} & set(found)
        assert new["data/demo_0"].attrs["num_samples"] == 0
        demo = new["data/demo_1"]
        assert demo.attrs["num_samples"] == 13
        for name in (*sizes, "packed"):
            np.testing.assert_array_equal(demo[name][:, 0], 2 * rows)
        assert demo["small"].chunks == (4, 2) and demo["plain"].chunks is None
        assert demo["large"].chunks is not None and demo["large"].chunks[0] <= 13
        assert demo["exact"].chunks == (13, 1) and demo["large"].compression is None
        assert demo["obs/short"][()].tolist() == [3, 4, 9]
        kept = demo["packed"]
        assert (kept.compression, kept.compression_opts, kept.shuffle) == ("gzip", 7, True)
        assert kept.attrs["unit"] == "m" and not demo["large"].shuffle


@pytest.mark.parametrize("rows", [range(0), range(3, 40), [0, 39], [*range(30), 38], [5, 2]])
def test_compressed_frames_keep_their_bytes_unless_they_are_changed(tmp_path, rows):
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), np.uint8)
    path = write_demos(tmp_path / "a.hdf5", [episode(40, {"i": images})], image_storage="jpeg")
    rows, key = np.array(rows, int), "obs/i"
    kept = {"demo_0": Rows(rows, rows)}
    with DatasetFile(path) as file:
        before, stored = file.read("demo_0", key)[rows], file.array("demo_0", key)[()][rows]
    with DatasetFile(copied(path, tmp_path, FileChanges(rows=kept))) as file:
        assert list(map(bytes, file.array("demo_0", key)[()])) == list(map(bytes, stored))
    turned = {key: lambda frames: 255 - frames}
    with DatasetFile(copied(path, tmp_path, FileChanges(rows=kept, values=turned))) as file:
        assert file.storage("demo_0", key) == "jpeg"
        found = file.read("demo_0", key).astype(int)
    np.testing.assert_allclose(found, 255 - before.astype(int), atol=40)
    for change, words in (
        (lambda frames: frames[:, :4], r"uint8 values of shape \(4, 8, 3\)"),
        (lambda frames: frames.astype(np.float32), r"float32 values of shape \(8, 8, 3\)"),
    ):
        changes = FileChanges(rows=kept, values={key: change})
        if len(rows):
            with pytest.raises(DatasetError, match=rf"of shape \(8, 8, 3\) cannot become {words}"):
                copied(path, tmp_path, changes)


def test_demos_masks_and_keys_of_a_copy(demo_file, tmp_path):
    path, told = demo_file(num_demos=3, filter_keys={"m": [0, 2], "gone": [1]}), []
    out = tmp_path / "copy.hdf5"
    rewrite(path, out, FileChanges(demos=["demo_2", "demo_0"]), lambda *at: told.append(at))
    assert told == [(1, 2), (2, 2)]
    with DatasetFile(out) as file:
        assert file.filter_keys() == {"m": ["demo_0", "demo_2"]}
    masks = {"own": ["demo_1", "demo_9"], "none": []}
    changes = FileChanges(masks=masks, drop={"next_obs"}, rename={"obs/object": "seen/o"})
    with DatasetFile(copied(path, tmp_path, changes)) as file:
        assert file.filter_keys() == {"own": ["demo_1"]}
        keys = file.keys("demo_0")
        assert "seen/o" in keys and "obs/object" not in keys
        assert not any(key.startswith("next_obs") for key in keys)
    with pytest.raises(DatasetError, match="no demo would be left: nothing is written"):
        copied(path, tmp_path, FileChanges(demos=()))


def test_what_touches_a_demo_and_has_a_row_per_step():
    rows = Rows(np.array([1]), np.array([2]))
    assert [rows.of(key)[0] for key in ("obs/a", "next_obs/a", "actions", "a/obs")] == [1, 1, 2, 2]
    assert not FileChanges().touches("d") and FileChanges(rows={"d": rows}).touches("d")
    assert not FileChanges(rows={"d": rows}).touches("e")
    changes = ({"drop": ["a"]}, {"rename": {"a": "b"}}, {"values": {"a": abs}})
    assert all(FileChanges(**words).touches("d") for words in changes)
    yes = ["actions", "round", "states", "obs/a", "next_obs/a", "action_dict/a", "signals/a"]
    no = ["a", "obs", "model", "datagen_info/a"]
    assert [key for key in yes + no if is_per_step(key)] == yes


def test_a_full_disk_is_no_damage_of_the_source(demo_file):
    with DatasetFile(demo_file(num_demos=1)) as file:
        with pytest.raises(OSError, match="No space left") as caught, copying(file, "demo_0"):
            raise OSError(errno.ENOSPC, "No space left on device")
        assert caught.value.errno == errno.ENOSPC and not isinstance(caught.value, DatasetError)
        with (
            pytest.raises(DatasetError, match="demo 'demo_0' cannot be read"),
            copying(file, "demo_0"),
        ):
            raise OSError("bad block")


def test_keys_that_no_demo_has_are_refused(demo_file):
    with DatasetFile(demo_file(num_demos=2)) as file:
        check_keys(file, ["obs/object", "actions", "obs"])
        with pytest.raises(DatasetError, match="obs/objekt.*obs/object"):
            check_keys(file, ["actions", "obs/objekt"])
