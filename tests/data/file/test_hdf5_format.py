import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.file.hdf5_format import natural_key
from imitate.errors import DatasetError


def test_demos_in_natural_order_whatever_their_names(demo_file):
    names = ["demo_10", "demo_2", "b", "2024-01-09 run 3", "2024-01-09 run 12", "demo_1"]
    path = demo_file(num_demos=6, names=names, filter_keys={"some": [0, 1, 5]})
    with DatasetFile(path) as file:
        assert file.demos() == [
            "2024-01-09 run 3",
            "2024-01-09 run 12",
            "b",
            "demo_1",
            "demo_2",
            "demo_10",
        ]
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
        assert file.attrs("demo_0") == {
            "num_samples": 5,
            "success": True,
            "model_file": "<mujoco/>",
        }
        assert file.file_attrs["total"] == 12
        assert file.has("demo_0", "rewards")
        assert not file.has("demo_0", "obs/nothing")


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


def test_fingerprint_follows_the_content(demo_file):
    one, same, other = (
        demo_file("a.hdf5", seed=0),
        demo_file("b.hdf5", seed=0),
        demo_file("c.hdf5", seed=1),
    )

    def fingerprint(path):
        with DatasetFile(path) as file:
            return file.fingerprint()

    assert fingerprint(one)["num_demos"] == 4
    assert fingerprint(one)["num_steps"] == 48
    assert fingerprint(one)["sha256"] == fingerprint(same)["sha256"]
    assert fingerprint(one)["sha256"] != fingerprint(other)["sha256"]


def test_reading_changes_nothing(demo_file):
    path = demo_file()
    before = path.read_bytes()
    with DatasetFile(path) as file:
        file.fingerprint()
    assert path.read_bytes() == before
