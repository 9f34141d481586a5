"""Files that do not begin with HDF5, and arrays that were never written."""

import h5py
import numpy as np
import pytest

from imitate.data import SequenceDataset


@pytest.fixture
def path(tmp_path):
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
def test_values_are_found_where_they_lie(path, cache_mode):
    dataset = SequenceDataset(
        path, obs_keys=("state", "image"), hdf5_cache_mode=cache_mode, hdf5_use_swmr=False
    )
    batch = dataset[np.arange(4)]
    assert batch["obs"]["state"][:, 0, 0].tolist() == [0, 2, 4, 6]
    assert batch["actions"].unique().tolist() == [0.25]
    # Never written: HDF5 reads zeros, and so do we.
    assert not batch["rewards"].any()
    assert not batch["obs"]["image"].any()
