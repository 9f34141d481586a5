"""MimicGen: what its files leave out, and what they have besides."""

import json

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.formats.convert import convert


def write(path, states_group=False):
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps(
            {"env_name": "Stack_D0", "type": 1, "env_kwargs": {"robots": ["Panda"]}}
        )
        for name in ("demo_10", "demo_9"):
            group = data.create_group(name)
            group.attrs["num_samples"] = 4
            group["actions"] = np.full((4, 7), int(name[5:]) / 100)
            group["obs/object"] = np.ones((4, 3))
            group["states/joints" if states_group else "states"] = np.arange(20.0).reshape(4, 5)
            group["src_demo_inds"] = np.array([3, 1])
            group["datagen_info/eef_pose"] = np.tile(np.eye(4), (4, 1, 1))
            group["datagen_info/object_poses/cube"] = np.tile(np.eye(4), (4, 1, 1))
            group["datagen_info/subtask_term_signals/grasp"] = np.array([0, 0, 1, 1])
            group["datagen_info"].attrs["env_interface_name"] = "MG_Stack"
    return path


@pytest.mark.parametrize(
    ("name", "rewards", "terminals", "timeouts"),
    [
        ("demo", [0, 0, 0, 1], [0, 0, 0, 1], [0] * 4),
        ("demo_failed", [0] * 4, [0] * 4, [0, 0, 0, 1]),
    ],
)
def test_rewards_and_ends_are_made_up(tmp_path, name, rewards, terminals, timeouts):
    report = convert(write(tmp_path / f"{name}.hdf5"), tmp_path / "o.hdf5")
    assert report.source_format == "mimicgen"
    assert {"rewards", "terminals", "timeouts"} <= set(report.synthesised)
    with DatasetFile(tmp_path / "o.hdf5") as file:
        assert file.demos() == ["demo_9", "demo_10"]
        assert file.read("demo_9", "rewards").tolist() == rewards
        assert file.read("demo_9", "terminals").tolist() == terminals
        assert file.read("demo_9", "timeouts").tolist() == timeouts
        assert file.attrs("demo_9")["success"] == (name == "demo")
        assert not file.has("demo_9", "next_obs")


def test_datagen_info_is_kept(tmp_path):
    convert(write(tmp_path / "d.hdf5"), tmp_path / "o.hdf5")
    with DatasetFile(tmp_path / "o.hdf5") as file:
        assert file.shape("demo_10", "datagen_info/object_poses/cube") == (4, 4, 4)
        assert file.read("demo_10", "datagen_info/subtask_term_signals/grasp").tolist() == [
            0,
            0,
            1,
            1,
        ]
        attrs = file.attrs("demo_10")
        assert attrs["datagen_info.env_interface_name"] == "MG_Stack"
        assert attrs["src_demo_inds"].tolist() == [3, 1]
        assert file.read("demo_10", "actions")[0, 0] == 0.1


def test_states_may_be_a_group(tmp_path):
    report = convert(write(tmp_path / "d.hdf5", states_group=True), tmp_path / "o.hdf5")
    assert report.renamed["states/joints"] == "state_dict/joints"
    with DatasetFile(tmp_path / "o.hdf5") as file:
        assert file.read("demo_9", "state_dict/joints")[3, 4] == 19
        assert not file.has("demo_9", "states")
