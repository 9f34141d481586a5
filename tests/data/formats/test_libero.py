"""LIBERO: late observations, images upside down, the instruction, a file per task."""

import json

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.formats.base import Options
from imitate.data.formats.convert import convert

T = 5


def write(path, instruction="pick up the book", late=True, convention="opengl", base=0.0):
    """States hold [time, 7 joints, 2]; joints at time t are t, so that a late row reads t + 1."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps(
            {"type": 1, "env_name": "Libero_Task", "problem_name": "p", "bddl_file": "/x/a.bddl", "env_kwargs": {}}
        )  # fmt: skip
        data.attrs["problem_info"] = json.dumps({"language_instruction": instruction})
        data.attrs["bddl_file_name"] = f"/somewhere/{path.stem}.bddl"
        data.attrs["macros_image_convention"] = convention
        for number in range(2):
            group = data.create_group(f"demo_{number}")
            group.attrs.update({"num_samples": T, "model_file": "<x/>", "init_state": np.zeros(10)})
            time = np.arange(T) + base
            group["actions"] = np.stack([time] * 7, axis=1) / 100
            group["states"] = np.stack([time] * 10, axis=1)
            seen = time + 1 if late else time
            group["robot_states"] = np.stack([seen] * 9, axis=1)
            group["rewards"] = (time == time[-1]).astype(np.uint8)
            group["dones"] = (time == time[-1]).astype(np.uint8)
            group["obs/joint_states"] = np.stack([seen] * 7, axis=1)
            group["obs/gripper_states"] = np.stack([seen] * 2, axis=1)
            image = np.zeros((T, 4, 6, 3), dtype=np.uint8)
            image[:, 0] = 200  # the first row, which is the lowest for OpenGL
            group["obs/agentview_rgb"] = image
    return path


def test_late_observations_are_moved_and_the_first_step_goes(tmp_path):
    report = convert(write(tmp_path / "open_the_drawer_demo.hdf5"), tmp_path / "o.hdf5")
    assert report.source_format == "libero"
    with DatasetFile(tmp_path / "o.hdf5") as file:
        assert file.length("demo_0") == T - 1
        joints = file.read("demo_0", "obs/robot0_joint_pos")[:, 0]
        assert joints.tolist() == [1, 2, 3, 4]
        assert file.read("demo_0", "states")[:, 1].tolist() == [1, 2, 3, 4]
        assert file.read("demo_0", "robot_states")[:, 0].tolist() == [1, 2, 3, 4]
        assert file.read("demo_0", "next_obs/robot0_joint_pos")[:, 0].tolist() == [2, 3, 4, 5]
        assert file.read("demo_0", "actions")[:, 0].tolist() == [0.01, 0.02, 0.03, 0.04]
        assert file.read("demo_0", "terminals").tolist() == [0, 0, 0, 1]
        attrs = file.attrs("demo_0")
        assert (attrs["language"], attrs["success"]) == ("pick up the book", True)
        assert attrs["model_file"] == "<x/>"
    assert "late" in report.changed["obs"]


def test_files_made_again_without_the_lag_are_left_in_time(tmp_path):
    report = convert(write(tmp_path / "a_demo.hdf5", late=False), tmp_path / "o.hdf5")
    with DatasetFile(tmp_path / "o.hdf5") as file:
        assert file.read("demo_0", "obs/robot0_joint_pos")[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert any("not late" in note for note in report.notes)


@pytest.mark.parametrize(
    ("convention", "option", "flipped", "after"),
    [
        ("opengl", None, True, "opencv"),
        ("opencv", None, False, "opencv"),
        ("opengl", False, False, "opengl"),
        ("opencv", True, True, "opengl"),
    ],
)
def test_images_are_set_upright_and_that_is_stored(tmp_path, convention, option, flipped, after):
    source = write(tmp_path / "a_demo.hdf5", convention=convention)
    convert(source, tmp_path / "o.hdf5", options=Options(flip_images=option))
    with DatasetFile(tmp_path / "o.hdf5") as file:
        image = file.read("demo_1", "obs/agentview_image")
        assert image[0, -1 if flipped else 0].min() == 200
        assert file.file_attrs["images_flipped"] == flipped
        assert file.file_attrs["macros_image_convention"] == after


def test_a_folder_of_tasks_becomes_one_file(tmp_path):
    folder = tmp_path / "libero_goal"
    folder.mkdir()
    write(folder / "a_demo.hdf5", "open it")
    write(folder / "b_demo.hdf5", "close it", base=1.0)
    report = convert(folder, tmp_path / "o.hdf5")
    assert report.demos == 4
    with DatasetFile(tmp_path / "o.hdf5") as file:
        assert file.filter_keys() == {"a": ["demo_0", "demo_1"], "b": ["demo_2", "demo_3"]}
        assert [file.attrs(demo)["language"] for demo in file.demos()] == ["open it"] * 2 + [
            "close it"
        ] * 2
        assert [file.attrs(demo)["task_id"] for demo in file.demos()] == [0, 0, 1, 1]
        assert file.attrs("demo_3")["bddl_file_name"] == "/somewhere/b_demo.bddl"
        assert file.read("demo_2", "actions")[0, 0] == 0.02
