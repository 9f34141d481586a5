"""LIBERO's tasks: what is recognised, the instruction, images, and when observations are late."""

import json

import h5py
import numpy as np
import pytest

from imitate.data.formats.base import ConversionReport, Options
from imitate.data.formats.libero import FORMAT
from tests.data.formats.samples import libero_task
from tests.refusals import refused


def read(path, **options):
    report = ConversionReport()
    with FORMAT.read(path, Options(**options), report) as source:
        return source, list(source.demos), report


def changed(path, attrs=(), **arrays):
    """A task with other attributes of the group ``data`` and other arrays of its demos; None removes one."""
    libero_task(path)
    with h5py.File(path, "r+") as file:
        for key, value in dict(attrs).items():
            file["data"].attrs.pop(key, None)
            if value is not None:
                file["data"].attrs[key] = value
        for demo in file["data"].values():
            for key, value in arrays.items():
                name = key.replace("__", "/")
                if name in demo:
                    del demo[name]
                if value is not None:
                    demo[name] = value
    return path


@pytest.mark.parametrize(
    ("attrs", "is_ours"),
    [
        ({}, True),
        ({"bddl_file_name": None}, True),
        ({"problem_info": None}, True),
        ({"problem_info": None, "bddl_file_name": None}, False),
        ({"env": "Lift"}, False),
    ],
)
def test_what_is_recognised(tmp_path, attrs, is_ours):
    folder = tmp_path / "goal"
    folder.mkdir()
    assert not FORMAT.recognises(folder)
    with refused(f"{folder}: there is no .hdf5 file in this folder"):
        read(folder)
    path = changed(folder / "a.hdf5", attrs)
    assert FORMAT.recognises(path) is FORMAT.recognises(folder) is is_ours
    with h5py.File(path, "w") as file:
        file["data"] = np.zeros(3)
        file["data"].attrs["problem_info"] = "{}"
    assert not FORMAT.recognises(path)


def test_one_task_and_several(tmp_path):
    folder = tmp_path / "goal"
    folder.mkdir()
    libero_task(folder / "a_demo.hdf5")
    source, demos, report = read(folder / "a_demo.hdf5")
    assert (source.count, source.masks, report.notes) == (2, {}, [])
    assert [name for name, _ in demos] == ["demo_0", "demo_1"]
    assert source.attrs["images_flipped"] is True
    assert source.attrs["macros_image_convention"] == "opencv"
    assert demos[0].episode.attrs["task"] == "a" and demos[0].episode.attrs["task_id"] == 0
    libero_task(folder / "b.hdf5", convention="opencv")
    source, demos, report = read(folder)
    assert (source.count, len(demos), len(report.notes)) == (4, 4, 1)
    assert report.notes[0].startswith("2 tasks in one file: each has a filter key and a task_id")
    assert " those of a_demo.hdf5," in report.notes[0]
    assert source.masks == {"a": ["demo_0", "demo_1"], "b": ["demo_2", "demo_3"]}
    assert source.attrs["images_flipped"] is True and demos[2].episode.attrs["task_id"] == 1


@pytest.mark.parametrize(
    ("info", "option", "words"),
    [
        (json.dumps({"language_instruction": ' "lift it" '}), None, "lift it"),
        (json.dumps({"language_instruction": ["li", "ft"]}), None, "lift"),
        (json.dumps({"language_instruction": "lift it"}), "own words", "own words"),
        (json.dumps({"other": 1}), None, "open the door"),
        ("{", None, "open the door"),
        ("[1]", None, "open the door"),
        (None, None, "open the door"),
    ],
)
def test_the_instruction(tmp_path, info, option, words):
    path = changed(
        tmp_path / "open_the_door_demo.hdf5", {"problem_info": info, "bddl_file_name": 3}
    )
    _, demos, report = read(path, language=option)
    attrs = demos[0].episode.attrs
    assert (attrs["language"], attrs["success"]) == (words, True) and "bddl_file_name" not in attrs
    assert "problem_info" in report.synthesised["attribute language"]


def test_images_and_depth_are_turned_and_nothing_else(tmp_path):
    rows = np.arange(5.0)[:, None, None]
    depth = np.broadcast_to(np.arange(4.0)[:, None], (5, 4, 6))
    path = changed(
        tmp_path / "a.hdf5",
        {"macros_image_convention": None},
        obs__eye_in_hand_depth=depth,
        obs__far_depth=depth[..., None],
        obs__table=depth + rows,
        obs__ee_pos=rows[:, 0],
    )
    _, demos, report = read(path)
    first = demos[0].episode
    assert list(first.obs["robot0_eye_in_hand_depth"][0, :, 0]) == [3, 2, 1, 0]
    assert list(first.obs["far_depth"][0, :, 0, 0]) == [3, 2, 1, 0]
    assert list(first.obs["table"][0, :, 0]) == [0, 1, 2, 3]
    assert first.obs["agentview_image"][0, 3].min() == 200
    turned = {key for key, why in report.changed.items() if why.startswith("turned upside down")}
    names = ("robot0_eye_in_hand_depth", "far_depth", "agentview_image")
    assert turned == {f"obs/{name}" for name in names}
    assert report.renamed["obs/ee_pos"] == "obs/robot0_eef_pos"
    assert "obs/table" not in report.renamed
    _, demos, report = read(path, flip_images=False)
    assert demos[0].episode.obs["agentview_image"][0, 0].min() == 200
    assert not any(why.startswith("turned") for why in report.changed.values())


def test_late_observations_belong_to_the_next_step(tmp_path):
    ends = np.array([0, 0, 0, 1, 1])
    _, demos, report = read(
        changed(tmp_path / "a.hdf5", terminals=ends, timeouts=1 - ends, extra=np.arange(5.0))
    )
    first = demos[0].episode
    assert first.actions[:, 0].tolist() == [0.01, 0.02, 0.03, 0.04]
    assert first.rewards.tolist() == [0, 0, 0, 1]
    assert first.terminals.tolist() == [0, 0, 1, 1] and first.timeouts.tolist() == [1, 1, 0, 0]
    assert first.states[:, 0].tolist() == [1, 2, 3, 4]
    assert first.steps["extra"].tolist() == [1, 2, 3, 4]
    assert first.steps["robot_states"][:, 0].tolist() == [1, 2, 3, 4]
    assert first.obs["robot0_joint_pos"][:, 0].tolist() == [1, 2, 3, 4]
    assert first.next_obs["robot0_joint_pos"][:, 0].tolist() == [2, 3, 4, 5]
    assert report.changed["obs"].startswith("recorded one step late: row t becomes next_obs[t]")
    assert (
        report.dropped["first step of each demo"] == "the observation before it is not in the file"
    )


TIME = np.arange(5.0)[:, None]
SEVEN, TEN = np.ones(7), np.ones(10)


@pytest.mark.parametrize(
    ("joints", "states", "late"),
    [
        (TIME * SEVEN, TIME * TEN, False),
        (TIME * SEVEN, TIME * TEN[:8], False),
        ((TIME + 0.49) * SEVEN, TIME * TEN, False),
        ((TIME + 0.51) * SEVEN, TIME * TEN, True),
        ((TIME - 0.5) * SEVEN, TIME * TEN, False),
        (0 * TIME * SEVEN, 0 * TIME * TEN, True),  # an arm that stands still fits both
        (TIME * SEVEN, np.hstack([9 * TIME, TIME * SEVEN, 5 * TIME]), False),  # columns 1 to 7
        (TIME * SEVEN, None, True),
        (None, TIME * TEN, True),
        (TIME * SEVEN[:6], TIME * TEN, True),
        (TIME * SEVEN, TIME * TEN[:7], True),
        (TIME * SEVEN, TIME[:, :, None] * np.ones((10, 10)), True),
    ],
)
def test_when_observations_are_late(tmp_path, joints, states, late):
    path = changed(tmp_path / "a.hdf5", obs__joint_states=joints, states=states)
    _, demos, report = read(path)
    assert len(demos[0].episode.actions) == (4 if late else 5)
    notes = "observations are not late in this file (they agree with 'states'): nothing was shifted"
    assert report.notes == ([] if late else [notes])
    if states is None:
        assert demos[0].episode.states is None
