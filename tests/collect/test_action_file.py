"""Meaning of a file's actions by its controllers, and the source of the poses, without a simulator."""

from dataclasses import replace

import numpy as np
import pytest

from imitate.collect import action_file
from imitate.collect.action_file import ActionFile, ObservedPoses, SimulatedPoses, open_poses
from imitate.data import DatasetFile, DatasetWriter, Episode
from imitate.envs.migration import installed_robosuite
from imitate.errors import DatasetError
from tests.demo_files import make_demo_file

ARM = {"type": "OSC_POSE", "gripper": {"type": "GRIP"}}
POSES = {"robot0_eef_pos": 3, "robot0_eef_quat_site": 4}
SECOND = {"robot1_eef_pos": 3, "robot1_eef_quat_site": 4}


def meta(*arms):
    configs = [{"type": "BASIC", "body_parts": {"right": {**ARM, **arm}}} for arm in arms]
    kwargs = {"robots": ["Panda"] * len(arms), "controller_configs": configs}
    version = installed_robosuite()
    return {"env_name": "Lift", "type": 1, "env_version": version, "env_kwargs": kwargs}


@pytest.fixture
def opened(tmp_path):
    """Opens a file with one demo whose environment has these arms."""
    files = []

    def make(*arms, obs=POSES):
        path = tmp_path / "a.hdf5"
        make_demo_file(path, num_demos=1, length=3, obs_dims=obs, env_meta=meta(*arms))
        files.append(DatasetFile(path))
        return ActionFile.of(files[-1], to=None, scale=None)

    yield make
    for file in files:
        file.close()


@pytest.mark.parametrize(
    ("arm", "mode", "base_frame"),
    [
        ({}, "delta", True),
        ({"input_type": "absolute", "input_ref_frame": "world"}, "absolute", False),
        ({"input_type": "delta", "input_ref_frame": "base"}, "delta", True),
    ],
)
def test_controllers_say_what_actions_mean(opened, arm, mode, base_frame):
    about = opened(arm, arm)
    found = about.mode, about.base_frame, about.arms, about.playable
    assert found == (mode, base_frame, 2, True)
    goals = about.env_args_for("absolute")["env_kwargs"]["controller_configs"]
    assert {c["body_parts"]["right"]["input_ref_frame"] for c in goals} == {"world"}
    motions = about.env_args_for("delta")["env_kwargs"]["controller_configs"]
    assert [c["body_parts"]["right"]["input_type"] for c in motions] == ["delta"] * 2
    assert motions[0]["body_parts"]["right"].get("input_ref_frame") == arm.get("input_ref_frame")


def test_limits_of_commands_are_the_controllers(opened):
    usual = opened({}).limits
    for found, wanted in (
        (usual.high, [1] * 6),
        (usual.low, [-1] * 6),
        (usual.motion_high, [0.05] * 3 + [0.5] * 3),
        (usual.motion_low, [-0.05] * 3 + [-0.5] * 3),
    ):
        assert found.tolist() == wanted
    own = opened({"input_max": 2, "input_min": -3, "output_max": 0.1, "output_min": [-0.2] * 6})
    for found, wanted in (
        (own.limits.high, 2),
        (own.limits.low, -3),
        (own.limits.motion_high, 0.1),
        (own.limits.motion_low, -0.2),
    ):
        assert found.tolist() == [wanted] * 6


@pytest.mark.parametrize(
    ("to", "mode"), [(None, "delta"), ("absolute", "delta"), ("delta", "absolute")]
)
def test_actions_of_other_robots_are_the_opposite_of_what_is_wanted(tmp_path, to, mode):
    path = make_demo_file(tmp_path / "a.hdf5", num_demos=1, env_meta={"env_name": "x", "type": 4})
    with DatasetFile(path) as file:
        about = ActionFile.of(file, to=to, scale=(0.1, 0.2))
        plain = ActionFile.of(file, to=to, scale=None)
    found = about.mode, about.arms, about.base_frame, about.playable
    assert found == (mode, 1, False, False)
    assert about.limits.motion_high.tolist() == [0.1] * 3 + [0.2] * 3
    assert about.limits.motion_low.tolist() == [-0.1] * 3 + [-0.2] * 3
    assert plain.limits.motion_high.tolist() == [1] * 6


def test_one_controller_may_be_that_of_two_robots(tmp_path):
    env = meta({})
    env["env_kwargs"]["robots"] = ["Panda", "Sawyer"]
    path = make_demo_file(tmp_path / "a.hdf5", num_demos=1, env_meta=env)
    with DatasetFile(path) as file:
        assert ActionFile.of(file, to=None, scale=None).arms == 2


class Arm:
    """A simulator whose hand is at its state, along the axes of a base that is turned by a quarter."""

    turned = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])

    def __init__(self):
        self.resets, self.closed = [], False

    def reset_to(self, start):
        self.resets.append(sorted(start))
        self.place = float(start["states"][0])

    def arm_poses(self):
        return [(np.full(3, self.place), np.eye(3), np.array([1.0, 2.0, 3.0]), self.turned)]

    def close(self):
        self.closed = True


@pytest.mark.parametrize("base_frame", [True, False])
def test_simulated_poses_are_those_of_the_recorded_states(tmp_path, monkeypatch, base_frame):
    arm, made = Arm(), []
    monkeypatch.setattr(action_file, "make_env", lambda *given, **how: made.append(how) or arm)
    monkeypatch.setattr(action_file, "RobosuiteEnv", Arm)
    steps, zeros = np.array([[0.5], [0.25]]), np.zeros(2)
    attrs = {"model_file": "<m/>", "ep_meta": "{}"}
    with DatasetWriter(tmp_path / "a.hdf5", meta({})) as writer:
        writer.append_episode(
            Episode({"x": steps}, steps, zeros, zeros, zeros, states=steps, attrs=attrs)
        )
    with DatasetFile(tmp_path / "a.hdf5") as file:
        with SimulatedPoses(file, {}, base_frame=base_frame) as source:
            hands, bases = source.of("demo_0")
        assert arm.closed and made == [{"obs_keys": []}]
        monkeypatch.setattr(action_file, "RobosuiteEnv", int)
        with pytest.raises(
            DatasetError, match="--source simulator works only for files of robosuite"
        ):
            SimulatedPoses(file, {}, base_frame=base_frame)
    assert arm.resets == [["ep_meta", "model", "states"], ["states"]]
    assert hands.position.tolist() == [[[0.5] * 3], [[0.25] * 3]]
    assert bases.tolist() == [[[1, 2, 3]]] * 2 and hands.rotation.shape == (2, 1, 3, 3)
    wanted = Arm.turned if base_frame else np.eye(3)
    np.testing.assert_array_equal(np.broadcast_to(hands.frame, (2, 1, 3, 3))[1, 0], wanted)


@pytest.mark.parametrize(
    ("arms", "robots"), [([{"type": "OSC_POSITION"}], 1), ([{"impedance_mode": "variable"}], 1)]
)
def test_other_controllers_are_refused(opened, arms, robots):
    with pytest.raises(DatasetError, match=f"{robots} robot.s. with 1 arm .*OSC_POSE with fixed"):
        opened(*arms)


@pytest.mark.parametrize(
    ("source", "mode", "arms", "base_frame", "found"),
    [
        ("auto", "delta", 1, True, "poses"),
        ("auto", "absolute", 1, False, "poses"),
        ("auto", "absolute", 1, True, "simulator"),
        ("auto", "delta", 2, True, "simulator"),
        ("auto", "delta", 2, False, "poses"),
        ("simulator", "delta", 1, False, "simulator"),
        ("poses", "absolute", 1, True, "only the simulator knows"),
        ("poses", "delta", 2, True, "only the simulator knows"),
    ],
)
def test_poses_are_observed_where_they_are_those_of_the_commands(
    opened, monkeypatch, source, mode, arms, base_frame, found
):
    about = replace(opened({}, obs=POSES | SECOND), mode=mode, arms=arms, base_frame=base_frame)
    frames = []

    def simulated(file, env_args, *, base_frame):
        frames.append(base_frame)
        return "simulator"

    monkeypatch.setattr(action_file, "SimulatedPoses", simulated)
    if found.startswith("only"):
        with pytest.raises(DatasetError, match=found):
            open_poses(about, source)
        return
    poses = open_poses(about, source)
    assert (poses if found == "simulator" else poses.name) == found
    assert frames == [base_frame] * (found == "simulator")


def test_without_poses_and_states_it_says_what_to_name(opened):
    about = opened({}, obs={"x": 3})
    with pytest.raises(DatasetError, match="no observation 'robot0_eef_pos'"):
        open_poses(about, "poses")
    about = replace(about, playable=False)
    with pytest.raises(DatasetError, match="neither the observations robot0_eef_pos, robot0_eef_q"):
        open_poses(about, "auto")


def test_observed_poses_are_in_the_world_with_bases_at_the_origin(opened):
    file = opened({}, obs=POSES | SECOND).file
    keys = (("robot0_eef_pos", "robot0_eef_quat_site"), ("robot1_eef_pos", "robot1_eef_quat_site"))
    hands, bases = ObservedPoses(file, keys).of("demo_0")
    for arm, (position, _) in enumerate(keys):
        np.testing.assert_array_equal(
            hands.position[:, arm], file.read("demo_0", f"obs/{position}")
        )
    assert hands.rotation.shape == (3, 2, 3, 3) and hands.frame.tolist() == np.eye(3).tolist()
    assert bases.shape == (3, 2, 3) and not bases.any()


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        (
            {"output_max": [1, 2]},
            "output_max of the arm's controller is .1, 2.; expected one finite number or six",
        ),
        ({"output_min": ["os:system"] * 6}, "output_min"),
        ({"input_max": None}, "input_max"),
        ({"input_min": 10**400}, "input_min"),
        ({"output_max": float("nan")}, "output_max"),
    ],
)
def test_controllers_of_a_file_that_are_no_numbers_are_refused(opened, arm, words):
    with pytest.raises(DatasetError, match=words):
        opened(arm)


@pytest.mark.parametrize("robots", [None, 3, ["Panda", 3], {"Panda": 1}])
def test_robots_of_a_file_that_are_no_names_are_refused(robots):
    with pytest.raises(DatasetError, match="the name of a robot or a list of names"):
        action_file.robot_names({"robots": robots})


@pytest.mark.parametrize("parts", [True, "right", [1]])
def test_parts_of_a_controller_that_are_no_dict_are_no_arms(parts):
    assert action_file.arm_controllers({"controller_configs": {"body_parts": parts}}) == []


def test_a_robot_that_robosuite_does_not_have_is_refused():
    with pytest.raises(DatasetError, match="robosuite has no robot '../../etc/passwd'"):
        action_file.with_explicit_controllers({"env_kwargs": {"robots": "../../etc/passwd"}})
