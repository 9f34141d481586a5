"""Copies with changes."""

import errno

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile, SequenceDataset
from imitate.data.edit.rewrite import FileChanges, Rows, check_keys, copying, rewrite
from imitate.errors import DatasetError


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
        for name, chunks in (("small", (4, 2)), ("large", (25, 2)), ("plain", None)):
            demo.create_dataset(name, data=np.arange(60).reshape(30, 2), chunks=chunks)
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
        for name in ("small", "large", "plain"):
            np.testing.assert_array_equal(demo[name][:, 0], 2 * rows)
        assert demo["small"].chunks == (4, 2) and demo["plain"].chunks is None
        assert demo["large"].chunks is not None and demo["large"].chunks[0] <= 13


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
