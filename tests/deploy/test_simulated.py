"""Simulated robots live in real time, and obey the interface of robots."""

import json
import time

import numpy as np
import pytest

from imitate.deploy.loop import ControlLoop, Safety
from imitate.deploy.robot import RobotError, make_robot, make_teleoperator
from imitate.deploy.simulated import ExpertTeleoperator, SimulatedRobot
from imitate.errors import EnvError, UserError

PENDULUM = {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}
LIFT = {
    "env_name": "Lift",
    "type": 1,
    "env_kwargs": {
        "robots": "Panda",
        "has_renderer": False,
        "has_offscreen_renderer": False,
        "use_camera_obs": False,
        "control_freq": 20,
    },
}


class Still:
    obs_keys = ()

    def __init__(self, action):
        self.action = np.asarray(action, dtype=float)

    def start_episode(self, lang=None):
        pass

    def __call__(self, ob):
        return self.action


@pytest.fixture
def pendulum():
    robot = SimulatedRobot(PENDULUM, rate_hz=50.0)
    robot.connect()
    yield robot
    robot.close()


def test_shapes_and_limits_are_known_once_it_is_connected(pendulum):
    (shape,) = pendulum.observation_shapes.values()
    assert shape == (3,)
    np.testing.assert_allclose(pendulum.limits.high, [2.0])


def test_the_world_goes_on_without_actions(pendulum):
    first = pendulum.observe()
    while (later := pendulum.observe()).stamp_s == first.stamp_s:
        time.sleep(0.01)
    assert any(not np.array_equal(first.values[k], later.values[k]) for k in first.values)


def test_a_loop_controls_it(pendulum):
    report = ControlLoop(pendulum, Still([1.0]), 50.0, safety=Safety(late=0)).run(20)
    assert report.steps == 20
    assert not report.unstamped


def test_in_step_it_moves_with_each_action_and_equal_seeds_are_equal():
    paths = []
    for _ in range(2):
        robot = SimulatedRobot(PENDULUM, seed=3, in_step=True)
        robot.connect()
        path = []
        for _ in range(5):
            robot.send(np.array([0.5]))
            path.append(next(iter(robot.observe().values.values())))
        robot.close()
        paths.append(path)
    np.testing.assert_array_equal(*paths)


def test_each_reset_has_a_seed_of_its_own(pendulum):
    first, second = (next(iter(pendulum.reset().values.values())) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3


def test_a_simulator_that_fails_is_told_and_nothing_hangs(pendulum):
    def fail(env):
        def broken(action):
            raise ValueError("the solver diverged")

        env.step = broken

    pendulum.ask(fail)
    with pytest.raises(RobotError, match="simulator failed: ValueError: the solver diverged"):
        while True:
            pendulum.observe()
            time.sleep(0.01)


def test_an_environment_that_cannot_be_made_is_told_at_connecting():
    robot = SimulatedRobot({"env_name": "NoSuchThing-v0", "type": 2, "env_kwargs": {}})
    with pytest.raises(EnvError, match="NoSuchThing"):
        robot.connect()
    robot.close()


def test_before_connecting_nothing_works():
    robot = SimulatedRobot(PENDULUM)
    with pytest.raises(RobotError, match="not connected"):
        robot.observe()
    with pytest.raises(RobotError, match="not connected"):
        robot.reset()
    robot.stop()


@pytest.mark.robosuite
def test_an_expert_at_the_device_lifts_the_cube_in_step():
    robot = SimulatedRobot(LIFT, seed=5, in_step=True)
    robot.connect()
    hand = ExpertTeleoperator("Lift", seed=0)
    hand.connect(robot)
    try:
        loop = ControlLoop(
            robot,
            None,
            1000.0,
            any_rate=True,
            teleoperator=hand,
            safety=Safety(late=0, watchdog_s=30.0),
        )
        reports = []
        for _ in range(2):
            reports.append(loop.run(200).ended_by)
            robot.reset()
    finally:
        robot.close()
    assert reports == ["success", "success"]


@pytest.mark.robosuite
def test_holding_keeps_the_gripper_closed():
    robot = SimulatedRobot(LIFT, in_step=True)
    robot.connect()
    try:
        robot.send(np.array([0.0, 0, 0, 0, 0, 0, 1.0]))
        np.testing.assert_array_equal(robot.pose(robot.observe()), [0, 0, 0, 0, 0, 0, 1.0])
        before = robot.observe().values["robot0_eef_pos"]
        for _ in range(10):
            robot.hold()
        after = robot.observe().values
        assert np.abs(after["robot0_eef_pos"] - before).max() < 0.01
        left, right = after["robot0_gripper_qpos"]
        assert left - right < 0.01
    finally:
        robot.close()


# ---- robots by name ------------------------------------------------------------------------------


def test_a_robot_by_its_place():
    robot = make_robot("tests.deploy.fake_robot:FakeRobot", stamped=False)
    assert not robot.stamped


def test_a_robot_in_a_file_may_have_dataclasses(tmp_path):
    file = tmp_path / "json.py"  # also the name of another module
    file.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from tests.deploy.fake_robot import FakeRobot\n"
        "@dataclass\n"
        "class Options:\n"
        "    stamped: bool = False\n"
        "class Arm(FakeRobot):\n"
        "    def __init__(self):\n"
        "        super().__init__(stamped=Options().stamped)\n"
    )
    assert not make_robot(f"{file}:Arm").stamped
    assert json.loads("1") == 1


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("panda", {}, "there is no robot 'panda'"),
        ("no_such_module:Arm", {}, "cannot be imported: No module"),
        ("tests.deploy.fake_robot:Nobody", {}, "cannot be imported"),
        ("tests.deploy.fake_robot:FakeRobot", {"colour": "red"}, "cannot be made"),
        ("tests.deploy.fake_robot:Constant", {}, "makes a Constant; wanted a subclass"),
    ],
)
def test_robots_that_cannot_be_had_are_one_line(name, options, words):
    with pytest.raises(UserError, match=words):
        make_robot(name, **options)


def test_devices_by_name():
    device = make_teleoperator("tests.deploy.fake_robot:Scripted", script={})
    assert device.script == {}
    with pytest.raises(UserError, match="there is no teleoperator 'mouse'"):
        make_teleoperator("mouse")
    with pytest.raises(UserError, match="wanted a subclass of imitate.deploy.Teleoperator"):
        make_teleoperator("tests.deploy.fake_robot:FakeRobot")


def test_the_same_number_is_the_same_beginning():
    robot = SimulatedRobot(PENDULUM, seed=7, in_step=True)
    robot.connect()
    try:
        starts = [robot.reset_to(start).values["flat"] for start in (3, 4, 3)]
        np.testing.assert_array_equal(starts[0], starts[2])
        assert not np.array_equal(starts[0], starts[1])
        other = SimulatedRobot(PENDULUM, seed=10, in_step=True)
        other.connect()  # begins with its first seed, 10, which is the third after 7
        np.testing.assert_array_equal(other.observe().values["flat"], starts[0])
        other.close()
    finally:
        robot.close()


@pytest.mark.robosuite
@pytest.mark.render
def test_a_simulated_robot_has_the_cameras_of_its_policy():
    from imitate.cli.robots import robot_of

    seen = {"robot0_eef_pos": (3,), "agentview_image": (40, 32, 3)}
    robot = robot_of("sim", ["in_step=true"], own=LIFT, seen=seen)
    try:
        first = robot.observe().values["agentview_image"]
        assert first.shape == (40, 32, 3) and first.dtype == np.uint8 and first.std() > 5
        assert robot.observation_shapes["agentview_image"] == (40, 32, 3)
        for _ in range(5):
            robot.send(np.array([0, 0, -1, 0, 0, 0, 1.0]))
        assert (robot.observe().values["agentview_image"] != first).any()
    finally:
        robot.close()


@pytest.mark.robosuite
@pytest.mark.render
def test_cameras_of_a_recording_are_named():
    from imitate.cli.robots import robot_of

    words = ["in_step=true", 'cameras={"frontview": 32, "robot0_eye_in_hand": [24, 48]}']
    robot = robot_of("sim", words, own=LIFT)
    try:
        shapes = robot.observation_shapes
        assert shapes["frontview_image"] == (32, 32, 3)
        assert shapes["robot0_eye_in_hand_image"] == (24, 48, 3)
        assert robot.env_meta["env_kwargs"]["camera_heights"] == [32, 24]  # what the file remembers
    finally:
        robot.close()
