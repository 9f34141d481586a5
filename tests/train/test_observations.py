"""Observations of files by modality: which shapes and types they have, what 'auto' takes and what is refused."""

import h5py
import numpy as np
import pytest

from imitate.config import load_config
from imitate.config.train import DatasetConfig
from imitate.data.shards.index import write_index
from imitate.errors import ConfigError, DatasetError
from imitate.train import observations as module
from imitate.train.observations import observed_of, with_observations
from tests.demo_files import episode, write_demos
from tests.refusals import refused


@pytest.mark.parametrize(
    ("key", "shape", "dtype", "kind"),
    [
        ("a", (), "f4", "low_dim"),
        ("a", (3,), "u1", "low_dim"),
        ("a", (3,), "?", "low_dim"),
        ("a", (3,), "i8", "low_dim"),
        ("a", (3,), "S3", None),
        ("a", (4, 4, 3), "u1", "rgb"),
        ("a", (4, 4, 1), "f4", "depth"),
        ("a", (4, 4, 2), "u1", None),
        ("a", (3, 4, 4), "u1", None),
        ("a", (4, 4), "u1", None),
        ("laser", (4, 4), "u1", None),
        ("a", (4, 4), "f4", "low_dim"),
        ("front_Lidar", (1, 4), "f4", "scan"),
        ("scan", (4, 4), "u2", "scan"),
        ("scan", (4,), "f4", "low_dim"),
        ("a", (2, 4, 4, 3), "u1", None),
    ],
)
def test_modalities(key, shape, dtype, kind):
    dtype = np.dtype(dtype)
    found = observed_of([("x", {key: (shape, dtype), "other": ((1,), np.dtype("f4"))})])
    assert found.modalities == {"other": "low_dim", **({} if kind is None else {key: kind})}
    why = f"shape {shape} of {dtype} is not a vector, image, depth image or scan"
    assert found.left_out == ({} if kind is not None else {key: why})
    assert found.shapes[key] == shape


def test_observations_that_all_have():
    form = ((2,), np.dtype("f4"))
    image = ((8, 8, 3), np.dtype("u1"))
    found = observed_of([("x", {"c": image, "b": form, "a": form}), ("y", {"b": form, "c": image})])
    assert list(found.shapes) == ["b", "c"] and found.words == "b (2,), c (8, 8, 3)"
    assert (found.keys("rgb"), found.keys("low_dim"), found.keys("scan")) == (["c"], ["b"], [])
    with refused("x, y: have no observation in common: name other files"):
        observed_of([("x", {"a": form}), ("y", {"b": form})])


@pytest.fixture
def path(tmp_path):
    obs = {"s": np.zeros((2, 2)), "goal": np.zeros((2, 1)), "i": np.zeros((2, 8, 8, 3), np.uint8)}
    return write_demos(tmp_path / "a.hdf5", [episode(2, obs)])


def config(path, low_dim, rgb=(), critic=None, **more):
    groups = {"obs": {"low_dim": low_dim, "rgb": list(rgb)}}
    groups |= {} if critic is None else {"critic": {"low_dim": critic}}
    tree = {
        "algo_name": "bc" if critic is None else "sac",
        "observation": {"modalities": groups},
        "train": {"data": None if path is None else str(path)},
        **more,
    }
    return load_config(tree)


@pytest.mark.parametrize(
    ("low_dim", "rgb", "critic", "taken"),
    [
        ("auto", ["i"], None, {"goal": "low_dim", "s": "low_dim", "i": "rgb"}),
        (["s"], "auto", None, {"s": "low_dim", "i": "rgb"}),
        (["goal", "auto"], [], None, {"goal": "low_dim", "s": "low_dim"}),
    ],
)
def test_auto(path, low_dim, rgb, critic, taken):
    rgb = ["auto"] if rgb == "auto" else rgb
    low_dim = ["auto"] if low_dim == "auto" else low_dim
    found = with_observations(config(path, low_dim, rgb, critic))
    assert found.observation.modality_of("obs") == taken


def test_critics_see_the_rest(path):
    found = with_observations(config(path, ["s"], critic=["auto"]))
    assert found.observation.modality_of("critic") == {"goal": "low_dim"}


def test_demonstrations_of_online_learning_are_read_only_for_auto(path):
    online = {"train": {"data": str(path), "online": {"enabled": True}}}
    own = config(path, ["only the environment has it"], critic=[], **online)
    assert with_observations(own) is own
    found = with_observations(config(path, ["s"], critic=["auto"], **online))
    assert found.observation.modality_of("critic") == {"goal": "low_dim"}


def test_files_of_weight_0_do_not_count(path):
    other = write_demos(path.with_name("b.hdf5"), [episode(2, {"z": np.zeros((2, 1))})])
    data = [{"path": str(path)}, {"path": str(other), "weight": 0}]
    found = with_observations(config(path, ["auto"], train={"data": data}))
    assert found.observation.modality_of("obs") == {"goal": "low_dim", "s": "low_dim"}


def test_each_part_of_a_hierarchy_has_its_own_auto(path):
    groups = {"planner": ["obs", "subgoal"], "actor": ["obs"]}
    parts = {
        name: {"modalities": {group: {"low_dim": ["auto"]} for group in own}}
        for name, own in groups.items()
    }
    tree = {"algo_name": "hbc", "observation": parts, "train": {"data": str(path)}}
    found = with_observations(load_config(tree)).observation
    for name, own in groups.items():
        for group in own:
            taken = getattr(found, name).modality_of(group)
            assert taken == {"goal": "low_dim", "s": "low_dim"}, (name, group)


def test_configurations_that_the_data_do_not_fit(path):
    plain = config(None, ["auto"])
    assert with_observations(plain) is plain
    there = "they have goal (1,), i (8, 8, 3), s (2,)"
    with refused(f"{path}: the demos have no 'ss' (did you mean 's'?)", there, error=ConfigError):
        with_observations(config(path, ["ss"]))
    # as many names as the file has: none of them is near
    with refused("the demos have no 'x', 'y', 'z'; they have", error=ConfigError):
        with_observations(config(path, ["z", "y", "x"]))
    weights = {"experiment": {"ckpt_path": "old.pth"}}
    for missing, renamed in (("eye_image", "obs/goal"), ("t", "obs/goal")):
        words = f"such as `imitate dataset rename-key {path} {renamed} obs/{missing} --out"
        with refused("rename those that the weights of old.pth take", words, error=ConfigError):
            with_observations(config(path, ["s", missing], **weights))
    obs = {"s": np.zeros((2, 2)), "left_image": np.zeros((2, 8, 8, 3), np.uint8)}
    obs["a"] = np.zeros((2, 1))
    path = write_demos(path.with_name("b.hdf5"), [episode(2, obs)] * 2)
    with h5py.File(path, "a") as file:
        del file["data/demo_1/obs/left_image"]
        file["mask/none"] = np.array([], "S1")
    with refused("obs/left_image obs/eye_image --out", error=ConfigError):
        with_observations(config(path, ["s"], ["eye_image"], **weights))
    with refused("obs/a obs/t --out", error=ConfigError):
        with_observations(config(path, ["s", "t"], **weights))
    with refused(f"{path}: filter key 'none' selects no demo"):
        with_observations(config(path, ["s"], train={"data": str(path), "hdf5_filter_key": "none"}))
    with refused("demo 'demo_1' has no 'obs/left_image'", error=DatasetError):
        with_observations(config(path, ["s"], ["left_image"]))


def test_observations_of_shards_are_those_of_their_index(path):
    folder = path.parent
    write_index(folder, [path])
    entry = DatasetConfig(path=str(folder))
    found = module.forms_of(entry, None, None)
    assert found[0] == str(folder)
    assert {key: form[0] for key, form in found[1].items()} == {
        "s": (2,),
        "goal": (1,),
        "i": (8, 8, 3),
    }
