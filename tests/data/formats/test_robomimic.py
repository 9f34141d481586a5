"""robomimic's layout in and out: equal arrays, and what older files have otherwise."""

import json

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from imitate.data import DatasetFile
from imitate.data.file.image_codec import write_images
from imitate.data.formats.convert import convert
from imitate.errors import DatasetError
from tests.demo_files import assert_equal_contents, contents

ENV = {"env_name": "Lift", "env_version": "1.4.1", "type": 1, "env_kwargs": {"robots": "Panda"}}


def write(path, demos=2, env_args=ENV, **more):
    """As robomimic's scripts write it; more: arrays or None to leave one out."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = 3 * demos
        if env_args is not None:
            data.attrs["env_args"] = json.dumps(env_args)
        for number in range(demos):
            group = data.create_group(f"demo_{number}")
            group.attrs.update({"num_samples": 3, "model_file": "<mujoco/>", "ep_meta": '{"a": 1}'})
            base = number + np.arange(3.0)
            given_arrays = {
                "actions": np.stack([base] * 7, axis=1) / 10,
                "rewards": np.array([0.0, 0.0, 1.0]),
                "dones": np.array([0, 0, 1]),
                "states": np.stack([base] * 5, axis=1),
                "obs/object": np.stack([base] * 4, axis=1),
                "next_obs/object": np.stack([base + 1] * 4, axis=1),
                "obs/agentview_image": np.full((3, 6, 8, 3), number, dtype=np.uint8),
                "action_dict/abs_rot_6d": np.stack([base] * 6, axis=1),
                "action_dict/gripper": base[:, None],
                **more,
            }
            for key, value in given_arrays.items():
                if value is not None:
                    group[key] = value
        file["mask/train"] = np.array([b"demo_0"])
        file["mask/gone"] = np.array([b"demo_1", b"demo_77"])
    return path


def test_everything_is_kept_and_what_is_missing_is_said(converted, tmp_path):
    report, file = converted(write(tmp_path / "a.hdf5"))
    arrays, attrs, *_ = contents(tmp_path / "a.hdf5")
    new_arrays, new_attrs, masks, _ = contents(tmp_path / "o.hdf5")
    assert attrs == new_attrs
    for demo in attrs:
        assert new_arrays.pop((demo, "terminals")).tolist() == [0, 0, 1]
        assert new_arrays.pop((demo, "timeouts")).tolist() == [0, 0, 0]
    assert new_arrays.keys() == arrays.keys()
    for place, value in arrays.items():
        np.testing.assert_array_equal(new_arrays[place], value)
    assert masks == {"gone": ["demo_1"], "train": ["demo_0"]}
    assert file.env_meta == ENV
    assert report.dropped == {"mask/gone": "1 names of demos that are not in the file"}
    assert report.synthesised["terminals"] == "= dones"
    assert {"action_dict/gripper", "attribute model_file"} <= set(report.kept)
    again = convert(tmp_path / "o.hdf5", tmp_path / "c.hdf5")
    assert_equal_contents(tmp_path / "o.hdf5", tmp_path / "c.hdf5")
    assert not (again.changed or again.synthesised or again.dropped or again.renamed)


def test_channels_first_images_are_turned(converted, tmp_path):
    image = np.arange(3 * 3 * 6 * 8, dtype=np.uint8).reshape(3, 3, 6, 8)
    report, file = converted(write(tmp_path / "a.hdf5", **{"obs/agentview_image": image}))
    turned = file.read("demo_1", "obs/agentview_image")
    assert turned.shape == (3, 6, 8, 3)
    assert turned[2, 5, 7, 1] == image[2, 1, 5, 7]
    assert "obs/agentview_image" in report.changed


@pytest.mark.parametrize(
    ("env_args", "type_", "where"),
    [
        ({"env_name": "Lift", "env_type": 2, "env_kwargs": {}}, 2, "renamed"),
        ({"env_name": "Lift", "env_kwargs": {"robots": "Panda"}}, 1, "synthesised"),
        (None, 4, "synthesised"),
    ],
)
def test_the_environments_type_is_mended(converted, tmp_path, env_args, type_, where):
    report, file = converted(write(tmp_path / "a.hdf5", env_args=env_args))
    assert file.env_meta["type"] == type_
    assert any(key.startswith("env_args") for key in getattr(report, where))


def test_demos_without_rewards_and_ends(converted, tmp_path):
    missing = dict.fromkeys(["rewards", "dones", "next_obs/object"])
    report, file = converted(write(tmp_path / "a.hdf5", **missing))
    assert file.read("demo_0", "rewards").tolist() == [0, 0, 0]
    assert file.read("demo_0", "terminals").tolist() == [0, 0, 0]
    assert file.read("demo_0", "timeouts").tolist() == [0, 0, 1]
    assert not file.has("demo_0", "next_obs")
    assert {"rewards", "terminals", "timeouts"} <= set(report.synthesised)


def test_images_of_one_jpeg_per_step_are_decoded(tmp_path):
    path = write(tmp_path / "a.hdf5", demos=1)
    shades = np.repeat(np.array([10, 90, 200], dtype=np.uint8), 6 * 8 * 3).reshape(3, 6, 8, 3)
    with h5py.File(path, "a") as file:
        write_images(file["data/demo_0/obs"], "wrist_image", shades, "jpeg", 95)
    report = convert(path, tmp_path / "b.hdf5")
    assert report.changed["obs/wrist_image"] == "a JPEG per step -> (T, H, W, 3) uint8"
    with DatasetFile(tmp_path / "b.hdf5") as file:
        assert file.storage("demo_0", "obs/wrist_image") == "raw"
        images = file.read("demo_0", "obs/wrist_image")
        assert images.shape == (3, 6, 8, 3)
        assert np.abs(images.astype(int) - shades).max() <= 2
    with h5py.File(path, "a") as file:
        file["data/demo_0/obs/wrist_image"][1] = np.arange(30, dtype=np.uint8)
    with pytest.raises(DatasetError, match="wrist_image' at step 1 cannot be decoded"):
        convert(path, tmp_path / "c.hdf5")


def test_arrays_that_are_not_per_step_become_attributes(converted, tmp_path):
    more = {"src_demo_inds": np.array([4, 2]), "note": np.bytes_(b"careful")}
    _, file = converted(write(tmp_path / "a.hdf5", **more))
    assert file.attrs("demo_0")["src_demo_inds"].tolist() == [4, 2]
    assert file.attrs("demo_0")["note"] == "careful"


def not_a_number(file):
    file["data/demo_1/obs/object"][1, 2] = np.nan


def rescaled(file):
    file["data"].attrs.update({"action_offset": np.zeros(7), "action_scale": np.ones(7)})


@pytest.mark.parametrize(
    ("change", "words"),
    [(not_a_number, "demo 'demo_1'.*'obs/object' holds NaN"), (rescaled, "--undo")],
)
def test_what_cannot_be_converted_leaves_nothing(tmp_path, change, words):
    path = write(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        change(file)
    with pytest.raises(DatasetError, match=words):
        convert(path, tmp_path / "b.hdf5")
    assert [item.name for item in tmp_path.iterdir()] == ["a.hdf5"]


NUMBERS = st.one_of(
    arrays(np.float32, (3, 2), elements=st.floats(-1e6, 1e6, width=32)),
    arrays(np.float64, (3,), elements=st.floats(-1e6, 1e6)),
    arrays(np.uint8, (3, 4, 5, 3)),
    arrays(np.int64, (3, 1)),
)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(values=st.dictionaries(st.sampled_from(["obs/x", "obs/y", "next_obs/x", "extra"]), NUMBERS))
def test_whatever_arrays_a_demo_has_come_out_equal(tmp_path, values):
    path = write(tmp_path / "a.hdf5", demos=1, **values)
    convert(path, tmp_path / "b.hdf5", overwrite=True)
    with DatasetFile(tmp_path / "b.hdf5") as file:
        for key, value in values.items():
            np.testing.assert_array_equal(file.read("demo_0", key), value)
            assert file.dtype("demo_0", key) == value.dtype
