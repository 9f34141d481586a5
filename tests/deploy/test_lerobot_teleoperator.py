"""A device of LeRobot moves a robot: the robot's order, who acts, keys and events, feedback to its motors."""

import os
import re
import sys

import numpy as np
import pytest

from imitate import clock
from imitate.deploy.lerobot_robot import LeRobotRobot
from imitate.deploy.lerobot_teleoperator import LeRobotTeleoperator
from imitate.deploy.limits import ActionLimits
from imitate.deploy.robot import RobotError
from imitate.errors import UserError
from tests.deploy.fake_robot import FakeRobot
from tests.deploy.lerobot_stand_ins import Arm, Gamepad, Leader

pytestmark = pytest.mark.usefixtures("virtual_time")

BOX = ActionLimits(low=[-90.0, -100.0, 0.0], high=[90.0, 100.0, 100.0])


@pytest.fixture
def no_terminal(monkeypatch, tmp_path):
    with (tmp_path / "empty").open("w+") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield


def connected(device, robot=None, **options):
    teleoperator = LeRobotTeleoperator(device, **options)
    teleoperator.connect(robot or LeRobotRobot(Arm()))
    return teleoperator


def test_the_action_is_in_the_robots_order(no_terminal):
    action = connected(Leader()).guide(None).action
    np.testing.assert_array_equal(action, [1.0, 2.0, 3.0])  # shoulder, elbow, gripper


def test_a_robot_without_names_takes_the_devices_order(no_terminal):
    robot = FakeRobot(BOX)
    np.testing.assert_array_equal(connected(Leader(), robot).guide(None).action, [3.0, 2.0, 1.0])


def test_a_device_of_other_joints_is_refused(no_terminal):
    class Other(Leader):
        action_features = {"wrist.pos": float, "elbow.pos": float, "gripper.pos": float}

    words = "gives wrist.pos, elbow.pos, gripper.pos; the robot's action is shoulder.pos, elbow.pos"
    with pytest.raises(UserError, match=re.escape(words)):
        connected(Other())
    with pytest.raises(UserError, match="the robot's action is 2 numbers"):
        connected(Leader(), FakeRobot())


def test_a_device_that_cannot_say_its_action_is_refused(no_terminal):
    class Keyboard(Leader):
        @property
        def action_features(self):
            raise AttributeError("no attribute 'arm'")

    with pytest.raises(UserError, match="'arm_leader' gives no action: AttributeError"):
        connected(Keyboard())


@pytest.mark.parametrize(
    ("pressed", "event"),
    [
        ({"success"}, {"success"}),
        ({"success", "terminate_episode"}, {"success"}),
        ({"terminate_episode"}, {"failure"}),
        ({"rerecord_episode", "terminate_episode"}, {"redo"}),
        ({"failure"}, {"failure"}),
        (set(), set()),
    ],
)
def test_events_of_the_device(pressed, event):
    gamepad = Gamepad()
    device = connected(gamepad, FakeRobot(BOX))
    gamepad.pressed = pressed
    assert device.guide(None).events == event


def test_the_person_acts_while_the_device_says_so():
    gamepad = Gamepad()
    device = connected(gamepad, FakeRobot(BOX))
    assert device.guide(None).action is None
    gamepad.pressed = {"is_intervention"}
    np.testing.assert_allclose(device.guide(None).action, [0.5, -0.5, 2.0])
    gamepad.pressed = set()
    assert device.guide(None).action is None


def test_a_device_that_gives_nothing_lets_the_robot_rest(no_terminal):
    gamepad = Gamepad()
    gamepad.pressed, gamepad.action = {"is_intervention"}, {}
    assert connected(gamepad, FakeRobot(BOX)).guide(None).action is None


@pytest.mark.parametrize("action", [{"delta_x": 1.0}, "unplugged"])
def test_a_device_that_fails_ends_the_episode(action):
    gamepad = Gamepad()
    gamepad.pressed, gamepad.action = {"is_intervention"}, action
    if action == "unplugged":

        def unplugged():
            raise OSError("unplugged")

        gamepad.get_action = unplugged
    with pytest.raises(RobotError, match=r"gave no 'delta_y'|failed: OSError: unplugged"):
        connected(gamepad, FakeRobot(BOX)).guide(None)


@pytest.mark.parametrize(
    ("key", "event"), [("\n", "success"), ("x", "failure"), ("\x7f", "discard"), ("\x1b", "quit")]
)
def test_a_leader_arm_has_the_keys_of_the_terminal(terminal, key, event):
    device = connected(Leader())
    terminal.press(key)
    guidance = device.guide(None)
    assert guidance.events == {event}
    assert guidance.action is not None
    assert device.guide(None).events == frozenset()
    device.close()


def test_a_device_with_events_leaves_the_terminal_alone(terminal):
    device = connected(Gamepad(), FakeRobot(BOX))
    os.write(terminal.master, b"x")
    assert device.guide(None).events == frozenset()


def test_taking_over_by_a_key_needs_a_terminal(no_terminal):
    leader = Leader()
    with pytest.raises(UserError, match="needs a terminal"):
        connected(leader, acts="key")
    assert not leader.is_connected


def test_the_leader_follows_until_the_person_takes_over(terminal):
    leader = Leader()
    device = connected(leader, acts="key", follow_speed=100.0)
    leader.calls.clear()
    assert device.guide(None).action is None
    target = np.array([51.0, 2.0, 3.0])
    device.follow(target)
    here = {"gripper.pos": 3.0, "elbow.pos": 2.0, "shoulder.pos": 1.0}
    # Its own pose before the torque, or the motors would go to an old goal.
    assert leader.calls == [("send_feedback", here), ("enable_torque", None)]
    clock.sleep(0.03)
    device.follow(target)
    # 100 a second, at most 0.2 s at once
    assert leader.calls[-1][1]["shoulder.pos"] == pytest.approx(1.0 + 3.0)
    assert leader.calls[-1][1]["elbow.pos"] == 2.0
    terminal.press(" ")
    np.testing.assert_array_equal(device.guide(None).action, [1.0, 2.0, 3.0])
    assert leader.calls[-1] == ("disable_torque", None)
    count = len(leader.calls)
    device.follow(target)
    assert len(leader.calls) == count
    terminal.press(" ")
    assert device.guide(None).action is None
    device.close()


def test_a_leader_in_a_persons_hand_gets_no_feedback(no_terminal):
    leader = Leader()
    device = connected(leader)
    device.guide(None)
    device.follow(np.zeros(3))
    assert leader.calls == [("connect", False)]


@pytest.mark.parametrize("options", [{"acts": "now"}, {"follow_speed": 0.0}])
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(UserError, match="expected"):
        LeRobotTeleoperator(Leader(), **options)
