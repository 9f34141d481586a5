"""Simulated robots live in real time, and obey the interface of robots."""

import json
import time
from contextlib import ExitStack, closing
from types import SimpleNamespace

import numpy as np
import pytest

from imitate.cli.robot.robots import robot_of
from imitate.deploy.robot import simulated
from imitate.deploy.robot.loop import ControlLoop, Safety
from imitate.deploy.robot.robot import Observation, make_robot, make_teleoperator
from imitate.deploy.robot.simulated import ExpertTeleoperator, SimulatedRobot
from imitate.errors import EnvError, RobotError, UserError
from imitate.system import clock
from tests.deploy.fake_robot import Constant
from tests.refusals import refused

PENDULUM = {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}
LIFT = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20}}
"""Without cameras and windows, as robots of the simulator are."""


@pytest.fixture
def connected():
    """Makes robots that are connected, and closed at the end."""
    with ExitStack() as robots:

        def make(env=PENDULUM, **options):
            robot = SimulatedRobot(env, **{"in_step": True, **options})
            robots.callback(robot.close)
            robot.connect()
            return robot

        yield make


@pytest.fixture
def pendulum(connected):
    return connected(rate_hz=50.0, in_step=False)


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
    policy = Constant([1.0])
    policy.obs_keys = ()
    report = ControlLoop(pendulum, policy, 50.0, any_rate=True, safety=Safety(late=0)).run(20)
    assert report.steps == 20
    assert not report.unstamped


def test_in_step_it_moves_with_each_action_and_equal_seeds_are_equal(connected):
    paths = []
    for _ in range(2):
        robot, path = connected(seed=3), []
        for _ in range(5):
            robot.send(np.array([0.5]))
            path.append(next(iter(robot.observe().values.values())))
        paths.append(path)
    np.testing.assert_array_equal(*paths)
    assert np.abs(np.diff(paths[0], axis=0)).min() > 0


def test_each_reset_has_a_seed_of_its_own(pendulum):
    first, second = (next(iter(pendulum.reset().values.values())) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3


def test_a_simulator_that_fails_is_told_and_nothing_hangs(pendulum):
    def broken(action):
        raise ValueError("the solver diverged")

    pendulum.call(lambda env: setattr(env, "step", broken))
    with refused("simulator failed: ValueError: the solver diverged", error=RobotError):
        while True:
            pendulum.observe()
            time.sleep(0.01)


def test_an_environment_that_cannot_be_made_is_told_at_connecting(connected):
    with refused("NoSuchThing", error=EnvError):
        connected({"env_name": "NoSuchThing-v0", "type": 2, "env_kwargs": {}})


def test_before_connecting_nothing_works():
    robot = SimulatedRobot(PENDULUM)
    for call in (robot.observe, robot.reset):
        with refused("not connected", error=RobotError):
            call()
    robot.stop()


@pytest.mark.slow("a whole episode of a simulator")
@pytest.mark.robosuite
def test_an_expert_at_the_device_lifts_the_cube_in_step(connected):
    robot, hand = connected(LIFT, seed=5), ExpertTeleoperator("Lift", seed=0)
    hand.connect(robot)
    safety = Safety(late=0, watchdog_s=30.0)
    loop = ControlLoop(robot, None, 1000.0, any_rate=True, teleoperator=hand, safety=safety)
    assert loop.run(200).ended_by == "success"


@pytest.mark.robosuite
def test_holding_keeps_the_gripper_closed(connected):
    robot = connected(LIFT)
    robot.send(np.array([0.0, 0, 0, 0, 0, 0, 1.0]))
    np.testing.assert_array_equal(robot.pose(robot.observe()), [0, 0, 0, 0, 0, 0, 1.0])
    before = robot.observe().values["robot0_eef_pos"]
    for _ in range(10):
        robot.hold()
    after = robot.observe().values
    assert np.abs(after["robot0_eef_pos"] - before).max() < 0.01
    left, right = after["robot0_gripper_qpos"]
    assert left - right < 0.01


@pytest.mark.robosuite
@pytest.mark.render
@pytest.mark.slow("draws in software")
def test_a_simulated_robot_has_the_cameras_of_its_policy():
    seen = {"robot0_eef_pos": (3,), "agentview_image": (40, 32, 3)}
    with closing(robot_of("sim", ["in_step=true"], own=LIFT, seen=seen)) as robot:
        first = robot.observe().values["agentview_image"]
        assert first.shape == (40, 32, 3) and first.dtype == np.uint8 and first.std() > 5
        assert robot.observation_shapes["agentview_image"] == (40, 32, 3)
        for _ in range(5):
            robot.send(np.array([0, 0, -1, 0, 0, 0, 1.0]))
        assert (robot.observe().values["agentview_image"] != first).any()


@pytest.mark.robosuite
@pytest.mark.render
@pytest.mark.nightly
def test_cameras_of_a_recording_are_named():
    words = ["in_step=true", 'cameras={"frontview": 32, "robot0_eye_in_hand": [24, 48]}']
    with closing(robot_of("sim", words, own=LIFT)) as robot:
        shapes = robot.observation_shapes
        assert shapes["frontview_image"] == (32, 32, 3)
        assert shapes["robot0_eye_in_hand_image"] == (24, 48, 3)
        assert robot.env_meta["env_kwargs"]["camera_heights"] == [32, 24]  # what the file remembers


def test_the_same_number_is_the_same_beginning(connected):
    robot = connected(seed=7)
    starts = [robot.reset_to(start).values["flat"] for start in (3, 4, 3)]
    np.testing.assert_array_equal(starts[0], starts[2])
    assert not np.array_equal(starts[0], starts[1])
    other = connected(seed=10)  # begins with its first seed, 10, which is the third after 7
    np.testing.assert_array_equal(other.observe().values["flat"], starts[0])


CARTPOLE = {"env_name": "CartPole-v1", "type": 2, "env_kwargs": {}}


def test_a_terminated_environment_waits_for_a_reset(connected):
    robot, steps = connected(CARTPOLE, seed=1), 0
    while robot.ended() is False and steps < 15:
        robot.send(np.array([1.0, 0.0]))
        steps += 1
    assert robot.ended() is True and 5 < steps < 15
    assert (robot.reward(), robot.reward()) == (float(steps), 0.0)
    last = robot.observe()
    robot.send(np.array([1.0, 0.0]))
    np.testing.assert_array_equal(robot.observe().values["flat"], last.values["flat"])
    assert robot.observe().stamp_s > last.stamp_s and robot.reward() == 0.0
    robot.reset()
    assert robot.ended() is False


def test_an_action_counts_for_one_period_and_a_stop_cancels_it(virtual_time, connected):
    robot, taken = connected(rate_hz=10.0, in_step=False, hold_action=[0.25]), []

    def watch(env):
        step = env.step
        env.step = lambda action: taken.append(float(action[0])) or step(action)

    robot.call(watch)
    robot.send(np.array([1.0]))
    clock.sleep(0.25)
    assert taken == [1.0, 0.25]
    robot.send(np.array([2.0]))
    robot.stop()
    clock.sleep(0.1)
    assert taken == [1.0, 0.25, 0.25]
    robot.hold()
    robot.send(np.array([-1.0]))
    clock.sleep(0.1)
    assert taken == [1.0, 0.25, 0.25, -1.0]
    assert robot.pose(None).tolist() == [0.25] and robot.success() is False


@pytest.mark.parametrize(
    ("given", "own", "rate_hz"), [(None, None, 20.0), (None, 30, 30.0), (5, 30, 5.0)]
)
def test_the_rate_is_the_given_one_or_the_environments(given, own, rate_hz):
    kwargs = {} if own is None else {"control_freq": own}
    assert SimulatedRobot({**PENDULUM, "env_kwargs": kwargs}, given).rate_hz == rate_hz


class Act:
    """An expert that acts by its steps, beyond the limits."""

    horizon = 4

    def __init__(self, style):
        self.steps = 0

    def act(self, obs):
        self.steps += 1
        return np.array([self.steps - 0.5])


@pytest.mark.parametrize(
    ("options", "solved", "actions", "events"),
    [
        ({"steps_after": 1}, (2, 9), [0.5, 1, 1, 0.5], {3: "success"}),
        ({"steps_after": 2}, (2, 9), [0.5, 1, 1, 1, 0.5], {4: "success"}),
        ({"steps_after": 1}, (2, 3), [0.5, 1, 1, 1, 0.5], {4: "failure"}),
        ({"patience": 2}, (9, 9), [0.5, 1, 0.5], {2: "failure"}),
        ({"watches": 2}, (9, 9), [None, None, 0.5, 1, None], {4: "failure"}),
    ],
)
def test_an_expert_at_a_device_judges_itself(monkeypatch, options, solved, actions, events):
    """The task is solved from one step until before another one."""
    monkeypatch.setattr(simulated, "find_expert", lambda task: Act)
    hand, step = ExpertTeleoperator("Lift", **options), 0
    with refused("the expert is not connected", error=UserError):
        hand.guide(Observation({}))
    hand.connect(SimpleNamespace(success=lambda: solved[0] <= step < solved[1]))
    found = {}
    for step, action in enumerate(actions, start=1):
        wish = hand.guide(Observation({}))
        assert (None if wish.action is None else wish.action.tolist()) == (action and [action])
        found |= dict.fromkeys([step] if wish.events else [], "".join(wish.events))
    assert found == events


# ---- robots by name ------------------------------------------------------------------------------


def test_a_robot_by_its_place():
    robot = make_robot("tests.deploy.fake_robot:FakeRobot", stamped=False)
    assert not robot.stamped


ARM_IN_A_FILE = """
from __future__ import annotations
from dataclasses import dataclass
from tests.deploy.fake_robot import FakeRobot

@dataclass
class Options:
    stamped: bool = False

class Arm(FakeRobot):
    def __init__(self):
        super().__init__(stamped=Options().stamped)
"""


def test_a_robot_in_a_file_may_have_dataclasses(tmp_path):
    file = tmp_path / "json.py"  # also the name of another module
    file.write_text(ARM_IN_A_FILE)
    assert not make_robot(f"{file}:Arm").stamped
    assert json.loads("1") == 1


HERE = "tests.deploy.fake_robot"


@pytest.mark.parametrize(
    ("make", "name", "options", "words"),
    [
        (make_robot, "panda", {}, "there is no robot 'panda'"),
        (make_robot, "no_such_module:Arm", {}, "cannot be imported: No module"),
        (make_robot, f"{HERE}:Nobody", {}, "cannot be imported"),
        (make_robot, f"{HERE}:FakeRobot", {"colour": "red"}, "cannot be made"),
        (make_robot, f"{HERE}:Constant", {}, "is a Constant, but must be a subclass"),
        (make_teleoperator, "mouse", {}, "there is no teleoperator 'mouse'"),
        (make_teleoperator, f"{HERE}:FakeRobot", {}, "must be a subclass of imitate.deploy.Teleoperator"),
    ],
)  # fmt: skip
def test_robots_and_devices_that_cannot_be_had_are_one_line(make, name, options, words):
    with refused(words, error=UserError):
        make(name, **options)


def test_a_device_by_its_place():
    assert make_teleoperator(f"{HERE}:Scripted", script={}).script == {}
