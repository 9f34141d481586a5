"""Values read past HDF5 are those that HDF5 reads, whatever the layout of the array."""

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile, SequenceDataset
from imitate.data.file.extents import Extents
from imitate.errors import DatasetError


@pytest.fixture(params=[0, 1024])
def path(tmp_path, request):
    """With and without a user block; arrays of every layout and of strange types."""
    random = np.random.default_rng(0)
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w", userblock_size=request.param) as file:
        demo = file.create_group("data/demo_0")
        demo["actions"] = random.normal(size=(9, 3))
        demo["obs/big_endian"] = random.normal(size=(9, 2)).astype(">f4")
        demo["obs/bool"] = random.integers(0, 2, (9, 4)).astype(bool)
        demo["obs/half"] = random.normal(size=9).astype(np.float16)
        demo["obs/empty"] = np.zeros((0, 4))
        demo["obs/no_width"] = np.zeros((9, 0))
        demo["obs/text"] = np.array([b"ab"] * 9)
        demo.create_dataset("obs/chunked", data=random.normal(size=(9, 5)), chunks=(4, 5))
        demo.create_dataset("obs/gzip", data=random.normal(size=(9, 5)), compression="gzip")
        demo.create_dataset("obs/never_written", shape=(9, 2), dtype="f4", fillvalue=7.0)
        demo["obs/deep/er/one"] = np.arange(9)
        demo["obs/byte"] = np.uint8([7])
        demo["scalar"] = 3.0
        demo["link"] = h5py.SoftLink("/data")
        narrow = h5py.h5t.STD_I32LE.copy()
        narrow.set_precision(24)
        strange = h5py.h5d.create(demo.id, b"strange", narrow, h5py.h5s.create_simple((9,)))
        strange.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(-4, 5, dtype=np.int32))
    return path


def test_equal_to_h5py(path, request):
    with DatasetFile(path) as file, Extents(file) as extents, h5py.File(path) as h5:
        found = extents.of("demo_0")
        assert set(found) == set(file.keys("demo_0")) - {"scalar"}
        assert list(found) == sorted(found)
        with pytest.raises(DatasetError, match="obs/text.*expected numbers"):
            extents.read("demo_0", "obs/text", 0, 9)
        for key, extent in found.items():
            if key == "obs/text":
                continue
            wanted = h5["data/demo_0"][key][()]
            assert extent.shape == wanted.shape
            for start, stop in ((0, 9), (2, 5), (7, 99), (3, 3), (4, None)):
                values = extents.read("demo_0", key, start, stop)
                assert values.dtype == wanted.dtype
                np.testing.assert_array_equal(values, wanted[start:stop])
        direct = {key for key, extent in found.items() if extent.offset is not None}
        plain = {"actions", "obs/big_endian", "obs/bool", "obs/half", "obs/deep/er/one", "obs/byte"}
        assert direct == (set() if request.node.callspec.params["path"] else plain)


def test_a_missing_demo_and_a_missing_array(path):
    with DatasetFile(path) as file, Extents(file) as extents:
        with pytest.raises(DatasetError, match="no demo 'demo_1'"):
            extents.of("demo_1")
        with pytest.raises(DatasetError, match="did you mean 'actions'"):
            extents.read("demo_0", "action", 0, 1)


@pytest.mark.parametrize("path", [0], indirect=True)
def test_the_file_is_closed_at_the_end(path):
    with DatasetFile(path) as file:
        with Extents(file) as extents:
            assert len(extents.read("demo_0", "actions", 0, None)) == 9
        with pytest.raises(DatasetError, match="closed file"):
            extents.read("demo_0", "actions", 0, None)


def test_groups_in_a_circle_end(path):
    with h5py.File(path, "r+") as file:
        file["data/demo_0/obs/again"] = file["data/demo_0/obs"]
    with (
        DatasetFile(path) as file,
        Extents(file) as extents,
        pytest.raises(DatasetError, match="without end"),
    ):
        extents.of("demo_0")


@pytest.mark.parametrize("path", [0], indirect=True)
def test_a_file_that_is_cut_while_it_is_open(path):
    with DatasetFile(path) as file, Extents(file) as extents:
        offset = extents.of("demo_0")["actions"].offset
        with path.open("r+b") as raw:
            raw.truncate(offset + 20)
        with pytest.raises(DatasetError, match=r"'demo_0', 'actions' cannot be read.*ends before"):
            extents.read("demo_0", "actions", 0, 9)


# ---- a file that does not begin with HDF5, with arrays that were never written -------------------


@pytest.fixture
def block(tmp_path):
    path = tmp_path / "block.hdf5"
    with h5py.File(path, "w", userblock_size=512) as file:
        data = file.create_group("data")
        data.attrs["env_args"] = '{"env_name": "x", "type": 2, "env_kwargs": {}}'
        demo = data.create_group("demo_0")
        demo.attrs["num_samples"] = 4
        demo["actions"] = np.full((4, 2), 0.25, np.float32)
        demo.create_dataset("rewards", (4,), dtype="f4")
        demo["dones"] = np.zeros(4, np.float32)
        demo["obs/state"] = np.arange(8, dtype=np.float32).reshape(4, 2)
        demo.create_dataset("obs/image", (4, 8, 8, 3), dtype="u1")
    return path


@pytest.mark.parametrize("cache_mode", ["all", "low_dim", None])
def test_values_are_found_where_they_lie(block, cache_mode):
    dataset = SequenceDataset(
        block, obs_keys=("state", "image"), hdf5_cache_mode=cache_mode, hdf5_use_swmr=False
    )
    batch = dataset[np.arange(4)]
    assert batch["obs"]["state"][:, 0, 0].tolist() == [0, 2, 4, 6]
    assert batch["actions"].unique().tolist() == [0.25]
    # Never written: HDF5 reads zeros, and so do we.
    assert not batch["rewards"].any() and not batch["obs"]["image"].any()
