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
from imitate.data.formats import robomimic as module
from imitate.data.formats.base import ConversionReport, NamedDemo, OpenedDataset, Options
from imitate.data.formats.convert import convert
from imitate.errors import DatasetError
from tests.demo_files import assert_equal_contents, contents, episode
from tests.refusals import refused

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


# ---- part by part --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meta", "said"),
    [
        (
            None,
            {"env_name": "unknown", "type": 4, "env_kwargs": {}},
            {"env_args": "a real robot: the file describes no environment"},
        ),
        ('{"type": 2}', {"type": 2}, {}),
        ('{"type": 2, "env_type": 1}', {"type": 2, "env_type": 1}, {}),
        ('{"env_type": 3}', {"type": 3}, {}),
        (
            '{"env_kwargs": {"robots": 1}}',
            {"env_kwargs": {"robots": 1}, "type": 1},
            {"env_args.type": "1 (robosuite)"},
        ),
        (
            '{"env_kwargs": null}',
            {"env_kwargs": None, "type": 4},
            {"env_args.type": "4 (a real robot)"},
        ),
        ('{"type": 5}', {"type": 5}, {}),
    ],
)
def test_the_environment(tmp_path, text, meta, said):
    report = ConversionReport()
    assert module.env_meta_of(text, tmp_path, report) == meta
    assert report.synthesised == said
    assert report.kept == ([] if text is None else ["env_args"])
    assert report.renamed == ({"env_args.env_type": "env_args.type"} if meta["type"] == 3 else {})
    known = "1 (robosuite), 2 (gymnasium), 3 (iGibson), 4 (a real robot)"
    notes = [f"env_args.type is 5, which no reader knows; known: {known}"]
    assert report.notes == (notes if meta["type"] == 5 else [])


@pytest.mark.parametrize("text", ["[1]", "{", 3, "x" * 60])
def test_an_environment_that_is_no_object(tmp_path, text):
    shown = repr(str(text)[:40])
    with refused(
        f"{tmp_path}: attribute 'env_args' of group 'data' is not a JSON object (begins {shown})"
    ):
        module.env_meta_of(text, tmp_path, ConversionReport())


T, F = True, False


@pytest.mark.parametrize(
    ("flags", "terminals", "timeouts", "synthesised", "changed"),
    [
        (
            {},
            [F, F],
            [F, T],
            {"terminals": "none: the file has neither", "timeouts": "at the last step"},
            {},
        ),
        (
            {"dones": [0, 1]},
            [F, T],
            [F, F],
            {"terminals": "= dones", "timeouts": "at the last"},
            {},
        ),
        ({"dones": [0, 1], "terminals": [0, 1]}, [F, T], [F, F], {"timeouts": "at the last"}, {}),
        (
            {"dones": [0, 1], "terminals": [0, 0]},
            [F, F],
            [F, T],
            {"timeouts": "at the last"},
            {"dones": "= terminals; they differed"},
        ),
        ({"terminals": [[1], [0]], "timeouts": [0, 0]}, [T, F], [F, F], {}, {}),
    ],
)
def test_ends(flags, terminals, timeouts, synthesised, changed):
    report = ConversionReport()
    values = {"other": 1, **{key: np.array(found) for key, found in flags.items()}}
    found = module.ends_of(values, 2, report)
    assert {key: list(flag) for key, flag in found.items()} == {
        "terminals": terminals,
        "timeouts": timeouts,
    }
    assert values == {"other": 1} and report.changed == changed
    assert set(report.synthesised) == set(synthesised)
    for key, words in synthesised.items():
        assert report.synthesised[key].startswith(words)


@pytest.mark.parametrize(
    ("step", "first"),
    [
        ((3, 8, 9), T),
        ((1, 8, 9), T),
        ((4, 8, 9), T),
        ((2, 8, 9), F),
        ((3, 8, 3), F),
        ((3, 8, 4), F),
        ((3, 8), F),
        ((3, 8, 1), F),
        ((3, 8, 2), T),
    ],
)
def test_channels_first(step, first):
    assert module.channels_first(step) is first


def test_what_is_recognised(tmp_path):
    path = tmp_path / "a.hdf5"
    for key, is_ours in (
        ("data/demo_0/actions", T),
        ("data/demo_0/obs/s", F),
        ("data", F),
        ("x", F),
    ):
        with h5py.File(path, "w") as file:
            file[key] = np.zeros(2)
        assert module.FORMAT.recognises(path) is is_ours
    with refused(f"{path}: has no group 'data', so it is not a file in robomimic's format"):
        convert(path, tmp_path / "b.hdf5", from_format="robomimic")


def test_attributes_masks_and_demos_without_steps(converted, tmp_path):
    path = write(tmp_path / "a.hdf5", demos=3)
    large = np.zeros(7500)  # 60,000 bytes, the most that becomes an attribute
    with h5py.File(path, "a") as file:
        data = file["data"]
        data.attrs.update({"control_freq": 25, "who": "us", "numbers": [1, 2], "imitate_format": 1})
        data["demo_0"].attrs["num_samples"] = 7
        data["demo_0/names"] = np.array([b"a", b"\xff"])
        data["demo_0/large/a"], data["demo_0/large/b"] = large, np.append(large, 0.0)
        data["demo_0/none"] = np.zeros((0, 2))
        data["demo_0/states_"] = 1
        del data["demo_2/actions"]
        data["demo_2/actions"] = np.zeros((0, 7))
        data["table"] = np.zeros(3)
    report, file = converted(path)
    assert (report.demos, file.demos(), file.control_freq) == (2, ["demo_0", "demo_1"], 25.0)
    assert file.file_attrs["who"] == "us" and file.file_attrs["numbers"].tolist() == [1, 2]
    assert report.dropped["demo_2"] == "has no step"
    words = "attribute 'num_samples' is 7, but there are 3 actions; corrected"
    assert [note for note in report.notes if words in note and "demo 'demo_0'" in note]
    attrs = file.attrs("demo_0")
    assert json.loads(attrs["names"]) == ["a", "\ufffd"]
    assert attrs["large.a"].shape == (7500,) and "large.b" not in attrs
    assert report.dropped["large/b"] == "shape (7501,): not one row per step"
    assert report.renamed["large/a"] == "attribute large.a"
    assert attrs["none"].shape == (0, 2) and attrs["states_"] == 1
    assert report.changed["rewards"] == "float64 -> float32"


@pytest.mark.parametrize(
    ("chosen", "source", "lossy", "stored"),
    [
        (None, "raw", True, "raw"),
        (None, "as-source", True, "jpeg"),
        (None, "as-source", False, "raw"),
        ("as-source", "raw", True, "jpeg"),
        ("gzip", "as-source", True, "gzip"),
        ("raw", "jpeg", True, "raw"),
    ],
)
def test_how_images_are_stored(tmp_path, chosen, source, lossy, stored):
    image = np.zeros((2, 8, 9, 3), np.uint8)
    meta = {"env_name": "x", "type": 4, "env_kwargs": {}}
    opened = OpenedDataset(
        meta, iter(()), lossy_images=lossy, images=source, masks={"m": ["d", "no"]}
    )
    report = ConversionReport()
    path = tmp_path / "a.hdf5"
    with module.FORMAT.write(path, opened, Options(images=chosen), report) as append:
        append(NamedDemo("d", episode(2, {"i": image}, rewards=np.zeros(2, np.float32))))
    assert report.changed == {}
    with DatasetFile(path) as file:
        assert file.storage("d", "obs/i") == stored
        assert file.filter_keys() == {"m": ["d"]}


def test_a_conversion_that_fails_leaves_no_part(tmp_path):
    opened = OpenedDataset({"env_name": "x", "type": 4, "env_kwargs": {}}, iter(()))
    actions = np.full((2, 1), 3.0)  # of any size
    write = module.FORMAT.write(tmp_path / "a.hdf5", opened, Options(), ConversionReport())
    with pytest.raises(KeyError), write as append:
        append(NamedDemo("d", episode(2, {"s": np.zeros((2, 1))}, actions)))
        raise KeyError
    assert list(tmp_path.iterdir()) == []
