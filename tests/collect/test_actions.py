"""Relative and absolute actions: played in robosuite, and arithmetic on made-up files."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from imitate.collect.action_file import arm_controllers
from imitate.collect.actions import ActionOptions, Blocks, Forms, convert_actions
from imitate.collect.replay import migrate_file
from imitate.data import DatasetFile
from imitate.data.edit.target import Target
from imitate.errors import DatasetError
from imitate.functional.rotations import CommandRange, HandPoses, rotation_6d_to_axis_angle
from tests.demo_files import make_demo_file

TWO_ARMS = Path(__file__).parents[1] / "data" / "fixtures" / "robosuite_1.4.1_two_arms.hdf5"
REAL = {"env_name": "arm", "type": 4, "env_kwargs": {}}
DIMS = {"hand_pos": 3, "hand_quat": 4}
KEYS = (("hand_pos", "hand_quat"),)


def convert(path, out, **options):
    return convert_actions(path, Target(out), ActionOptions(**options))


def read(path, key, demo="demo_0"):
    with DatasetFile(path) as file:
        return file.read(demo, key)


@pytest.fixture
def real(tmp_path):
    """A robot without a simulator: commands in the hand's pose, one of 1 is 1 m or 1 rad."""
    return make_demo_file(
        tmp_path / "real.hdf5",
        num_demos=2,
        length=6,
        obs_dims=DIMS,
        env_meta=REAL,
        action_scale=0.9,
    )


@pytest.fixture(scope="module")
def absolute(lift_file, tmp_path_factory):
    """The demonstrations of Lift with goals instead of motions, and the report."""
    out = tmp_path_factory.mktemp("absolute") / "absolute.hdf5"
    return out, convert(lift_file[0], out, to="absolute", source="simulator", check=1)


@pytest.mark.slow("plays whole episodes in the simulator")
def test_absolute_actions_reproduce_the_demonstrations(lift_file, absolute):
    path, report = absolute
    assert (report.was, report.now, report.poses) == ("delta", "absolute", "simulator")
    assert (report.keys, report.clipped) == (["actions"], 0)
    assert report.error < 1e-12
    assert len(report.replays) == 1
    for replay in report.replays.values():
        assert replay.is_solved and replay.hand_error_m < 1e-6
    with DatasetFile(path) as file:
        (arm,) = arm_controllers(file.env_meta["env_kwargs"])
    assert (arm["input_type"], arm["input_ref_frame"]) == ("absolute", "world")
    # A goal is where the hand is, but for the 5 cm of a full command.
    away = read(path, "actions")[:, :3] - read(path, "obs/robot0_eef_pos")
    assert np.abs(away).max() <= 0.05 + 1e-9
    np.testing.assert_array_equal(read(path, "actions")[:, 6], read(lift_file[0], "actions")[:, 6])


def test_observed_poses_give_nearly_the_same(lift_file, absolute, tmp_path):
    """Nearly: the observed quaternion is float32."""
    assert convert(lift_file[0], tmp_path / "observed.hdf5", to="absolute").poses == "poses"
    position, exact = (
        read(path, "actions")[:, :3] for path in (tmp_path / "observed.hdf5", absolute[0])
    )
    np.testing.assert_allclose(position, exact, atol=1e-9)


@pytest.mark.nightly
def test_back_to_the_original(lift_file, absolute, tmp_path):
    out = tmp_path / "delta.hdf5"
    assert convert(absolute[0], out, to="delta", source="simulator").clipped == 0
    for demo in ("demo_0", "demo_1"):
        original = read(lift_file[0], "actions", demo)
        np.testing.assert_allclose(read(out, "actions", demo), original, atol=1e-10)
    with DatasetFile(out) as file:
        assert arm_controllers(file.env_meta["env_kwargs"])[0]["input_type"] == "delta"


@pytest.mark.nightly
def test_two_arms_whose_bases_are_turned(tmp_path):
    """Commands in the frames of the bases become goals in the world, with the same motion."""
    new, out = tmp_path / "new.hdf5", tmp_path / "absolute.hdf5"
    migrate_file(TWO_ARMS, Target(new), check=0)
    with h5py.File(new, "r+") as file:
        data = file["data"]
        data.attrs["env_args"] = data.attrs["env_args"].replace('"world"', '"base"')
    with pytest.raises(DatasetError, match="only the simulator knows"):
        convert(
            new,
            out,
            to="absolute",
            source="poses",
            pose_keys=(("robot0_eef_pos", "robot0_eef_quat"),) * 2,
        )
    assert convert(new, tmp_path / "same.hdf5", action_dict=True).poses == "simulator"
    convert(new, out, to="absolute")
    rest = [6, 13]
    np.testing.assert_array_equal(read(out, "actions")[:, rest], read(new, "actions")[:, rest])
    goals = read(out, "actions")[0, :3] - read(new, "obs/robot0_eef_pos")[0]
    # robot0 looks along the world's y: its x is the world's y, and its y is minus the world's x.
    command = read(new, "actions")[0, :3] * 0.05
    np.testing.assert_allclose(goals, [-command[1], command[0], command[2]], atol=1e-6)
    assert read(tmp_path / "same.hdf5", "action_dict/abs_pos").shape == (8, 6)


@pytest.mark.parametrize("key", ["action_dict/goal", "actions_abs"])
def test_a_real_robots_goals_by_scipy(real, tmp_path, key):
    report = convert(
        real,
        tmp_path / "abs.hdf5",
        to="absolute",
        pose_keys=KEYS,
        scale=(0.1, 0.2),
        key=key,
        check=1,
    )
    assert (report.keys, report.clipped, report.replays) == ([key], 0, {})
    actions = read(real, "actions")
    turned = Rotation.from_rotvec(actions[:, 3:6] * 0.2) * Rotation.from_quat(
        read(real, "obs/hand_quat")
    )
    goal = read(tmp_path / "abs.hdf5", key)
    np.testing.assert_allclose(
        goal[:, :3], read(real, "obs/hand_pos") + actions[:, :3] * 0.1, atol=1e-12
    )
    np.testing.assert_allclose(
        Rotation.from_rotvec(goal[:, 3:6]).as_matrix(), turned.as_matrix(), atol=1e-12
    )
    np.testing.assert_array_equal(goal[:, 6], actions[:, 6])
    np.testing.assert_array_equal(read(tmp_path / "abs.hdf5", "actions"), actions)


def test_goals_out_of_reach_are_clipped_and_counted(real, tmp_path):
    """Goals 1 m off, for a robot that goes 0.1 m at most."""
    with h5py.File(real, "r+") as file:
        for name, steps in (("demo_0", 2), ("demo_1", 0)):
            demo = file["data"][name]
            demo["actions"][:, :3] = demo["obs/hand_pos"][:]
            demo["actions"][:, 3:6] = Rotation.from_quat(demo["obs/hand_quat"][:]).as_rotvec()
            demo["actions"][:steps, 0] += 1.0
            demo["actions"][steps:, 0] += 0.05
    out = tmp_path / "delta.hdf5"
    report = convert(real, out, to="delta", pose_keys=KEYS, scale=(0.1, 0.2))
    assert (report.steps, report.clipped, report.clipped_share) == (12, 2, 2 / 12)
    assert report.error < 1e-12
    np.testing.assert_allclose(read(out, "actions")[:, 0], [1, 1, 0.5, 0.5, 0.5, 0.5], atol=1e-12)


RANGE = CommandRange(*(torch.full((6,), x).double() for x in (-1, 1, -0.1, 0.1)))


def forms(mode, actions, frame=None, base=0.0):
    """Forms of actions (T, 2 arms, 7) whose hands are at the bases, at ``base`` in all coordinates."""
    actions = torch.tensor(actions).double().flatten(1)
    about = SimpleNamespace(mode=mode, limits=RANGE, base_frame=frame is not None)
    blocks = Blocks.of(actions, 2, "axis_angle", "x")
    place, turn = torch.full((len(actions), 2, 3), base).double(), torch.eye(3).double()
    hands = HandPoses(place, turn.expand(len(actions), 2, 3, 3), turn if frame is None else frame)
    return Forms(about, blocks, "axis_angle", hands, place, "x")


@pytest.mark.parametrize(("mode", "beyond"), [("delta", 1.5), ("absolute", 0.15)])
def test_a_step_that_is_clipped_for_one_arm_counts_once(mode, beyond):
    """Commands beyond 1, goals beyond 0.1 m: of one arm, of both, of none."""
    far, near = [beyond] + [0.0] * 6, [0.0] * 7
    made = forms(mode, [[far, near], [far, far], [near, near]])
    assert made.clipped == 2 and made.error < 1e-12
    moved = made.commands if mode == "absolute" else made.goals[0]
    assert moved[..., 0].tolist() == [[pytest.approx(x) for x in row] for row in (
        [[1, 0], [1, 1], [0, 0]] if mode == "absolute" else [[0.1, 0], [0.1, 0.1], [0, 0]]
    )]  # fmt: skip


def test_goals_in_the_frame_of_a_base_are_goals_in_the_world():
    """The base is at (1, 1, 1), and its x is the world's y."""
    frame = torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]).double()
    made = forms("absolute", [[[0.05, 0.02] + [0.0] * 5] * 2], frame, base=1.0)
    np.testing.assert_allclose(made.goals[0][0], [[0.98, 1.05, 1.0]] * 2)
    np.testing.assert_allclose(made.commands[0, :, :3], [[0.5, 0.2, 0.0]] * 2, atol=1e-12)


def test_robomimics_action_dict(real, tmp_path):
    out = tmp_path / "dict.hdf5"
    convert(real, out, action_dict=True, pose_keys=KEYS)
    actions = read(real, "actions")
    with h5py.File(out) as file:
        found = {key: value[:] for key, value in file["data/demo_0/action_dict"].items()}
        np.testing.assert_array_equal(file["data/demo_0/actions"][:], actions)
    widths = {key: values.shape[1] for key, values in found.items()}
    assert widths == {
        "gripper": 1,
        "rel_pos": 3,
        "rel_rot_axis_angle": 3,
        "rel_rot_6d": 6,
        "abs_pos": 3,
        "abs_rot_axis_angle": 3,
        "abs_rot_6d": 6,
    }
    assert {values.dtype for values in found.values()} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(found["rel_pos"], actions[:, :3].astype(np.float32))
    np.testing.assert_array_equal(found["gripper"], actions[:, 6:].astype(np.float32))
    # The first two rows of the matrix.
    rows = Rotation.from_rotvec(actions[:, 3:6]).as_matrix()[:, :2].reshape(-1, 6)
    np.testing.assert_allclose(found["rel_rot_6d"], rows, atol=1e-6)
    np.testing.assert_allclose(
        rotation_6d_to_axis_angle(torch.from_numpy(found["abs_rot_6d"]).double()),
        found["abs_rot_axis_angle"],
        atol=1e-4,
    )


@pytest.mark.parametrize(("rotation", "width"), [("rot6d", 10), ("euler", 7)])
def test_rotations_written_otherwise_and_back(real, tmp_path, rotation, width):
    there, back = tmp_path / "there.hdf5", tmp_path / "back.hdf5"
    report = convert(real, there, rotation=rotation)
    assert (report.poses, report.clipped, report.error) == ("", 0, 0.0)
    assert read(there, "actions").shape == (6, width)
    convert(there, back, from_rotation=rotation)
    np.testing.assert_allclose(read(back, "actions"), read(real, "actions"), atol=1e-12)


def test_what_was_executed_is_converted_too(real, tmp_path):
    with h5py.File(real, "r+") as file:
        for demo in file["data"].values():
            demo["executed_actions"] = demo["actions"][:] * 0.5
    out = tmp_path / "abs.hdf5"
    report = convert(real, out, to="absolute", pose_keys=KEYS)
    assert report.keys == ["actions", "executed_actions"]
    moved = read(out, "executed_actions")[:, :3] - read(real, "obs/hand_pos")
    np.testing.assert_allclose(moved, read(real, "actions")[:, :3] * 0.5, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "no conversion is requested: add --to"),
        ({"to": "absolute"}, "robot0_eef_pos.*--pose-keys"),
        ({"to": "absolute", "pose_keys": (("hand_pos", "hand"),)}, "hand"),
        ({"to": "absolute", "pose_keys": (("hand_quat", "hand_pos"),)}, "but need 3 and 4 numbers"),
        ({"to": "absolute", "pose_keys": KEYS, "key": "other"}, "action_dict/NAME"),
        ({"to": "delta", "key": "actions_abs"}, "with --to absolute, 'actions_abs'"),
        ({"rotation": "axis_angle", "from_rotation": "rot6d"}, "7 columns: 1 arm.s. with rot6d"),
        ({"to": "absolute", "pose_keys": KEYS * 2}, "--pose-keys has 2 pair.s. for 1 arm"),
        ({"to": "absolute", "source": "simulator"}, "nor states of robosuite"),
    ],
)
def test_one_line_and_no_file(real, tmp_path, options, words):
    before = real.read_bytes()
    with pytest.raises(DatasetError, match=words):
        convert(real, tmp_path / "out.hdf5", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["real.hdf5"]
    assert real.read_bytes() == before


def test_what_robosuite_cannot_play_is_refused(lift_file, tmp_path):
    with pytest.raises(DatasetError, match="executes only rotations as axis_angle"):
        convert(lift_file[0], tmp_path / "out.hdf5", rotation="rot6d")
    with pytest.raises(DatasetError, match="the actions are delta already"):
        convert(lift_file[0], tmp_path / "out.hdf5", to="delta")
    old = tmp_path / "old.hdf5"
    shutil.copy(TWO_ARMS, old)
    with pytest.raises(DatasetError, match="first run imitate dataset migrate-env .*old.hdf5"):
        convert(old, tmp_path / "out.hdf5", to="absolute")
