import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.file.hdf5_format import natural_key
from imitate.errors import DatasetError
from imitate.train.observations import observed
from tests.demo_files import episode, write_demos


def test_demos_in_natural_order_whatever_their_names(demo_file):
    names = ["demo_10", "demo_2", "b", "2024-01-09 run 3", "2024-01-09 run 12", "demo_1"]
    path = demo_file(num_demos=6, names=names, filter_keys={"some": [0, 1, 5]})
    with DatasetFile(path) as file:
        runs = ["2024-01-09 run 3", "2024-01-09 run 12"]
        assert file.demos() == [*runs, "b", "demo_1", "demo_2", "demo_10"]
        assert file.demos("some") == ["demo_1", "demo_2", "demo_10"]
        assert file.filter_keys() == {"some": ["demo_1", "demo_2", "demo_10"]}


def test_natural_key_takes_any_text():
    names = ["", "7", "a", "a7", "a07", "7a", "²", "a\u0663"]
    assert len(sorted(names, key=natural_key)) == len(names)


def test_reads_arrays_shapes_and_metadata(demo_file):
    path = demo_file(num_demos=2, length=[5, 7], image=True, attrs={"model_file": "<mujoco/>"})
    with DatasetFile(path) as file:
        assert file.length("demo_1") == 7
        assert file.obs_keys("demo_0")[:2] == ["agentview_image", "object"]
        assert file.shape("demo_0", "obs/agentview_image") == (5, 8, 6, 3)
        assert file.read("demo_0", "actions").shape == (5, 7)
        np.testing.assert_array_equal(
            file.read("demo_1", "next_obs/object")[:-1], file.read("demo_1", "obs/object")[1:]
        )
        assert file.env_meta["env_name"] == "Lift"
        attrs = {"num_samples": 5, "success": True, "model_file": "<mujoco/>"}
        assert file.attrs("demo_0") == attrs and file.file_attrs["total"] == 12
        assert file.has("demo_0", "rewards") and not file.has("demo_0", "obs/nothing")


def test_a_file_without_env_args_has_no_environment(demo_file):
    path = demo_file()
    with h5py.File(path, "a") as file:
        del file["data"].attrs["env_args"]
    with DatasetFile(path) as file:
        assert file.env_meta == {}
    with h5py.File(path, "a") as file:
        file["data"].attrs["env_args"] = "{not json"
    with (
        DatasetFile(path) as file,
        pytest.raises(DatasetError, match="'env_args'.*not a JSON object"),
    ):
        _ = file.env_meta


# ---- observations by their modality --------------------------------------------------------------

STEP = {
    "joints": np.zeros(3),
    "pose": np.zeros((4, 4)),
    "count": np.zeros((), dtype=np.int64),
    "camera_image": np.zeros((8, 6, 3), dtype=np.uint8),
    "camera_depth": np.zeros((8, 6, 1), dtype=np.float32),
    "lidar_scan": np.zeros((16, 1), dtype=np.float32),
    "video": np.zeros((2, 8, 6, 3), dtype=np.uint8),
}


def write(path, keys):
    return write_demos(path, [episode(3, {key: np.stack([STEP[key]] * 3) for key in keys})])


def test_keys_by_modality(tmp_path):
    path = write(tmp_path / "a.hdf5", [key for key in STEP if key != "video"])
    with DatasetFile(path) as file:
        found = observed([(file, "demo_0")])
    assert found.keys("low_dim") == ["count", "joints", "pose"]
    assert (found.keys("rgb"), found.keys("depth")) == (["camera_image"], ["camera_depth"])
    assert (found.keys("scan"), found.left_out) == (["lidar_scan"], {})
    assert "joints (3,)" in found.words


def test_what_is_in_every_file_counts(tmp_path):
    first = write(tmp_path / "a.hdf5", ["joints", "count"])
    second = write(tmp_path / "b.hdf5", ["joints", "pose"])
    third = write(tmp_path / "c.hdf5", ["count"])
    with DatasetFile(first) as a, DatasetFile(second) as b, DatasetFile(third) as c:
        assert list(observed([(a, "demo_0"), (b, "demo_0")]).modalities) == ["joints"]
        with pytest.raises(DatasetError, match="have no observation in common"):
            observed([(b, "demo_0"), (c, "demo_0")])
