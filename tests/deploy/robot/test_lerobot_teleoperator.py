"""A device of LeRobot moves a robot: the robot's order, who acts, keys and events, feedback to its motors."""

import inspect
import os
import sys
import termios

import numpy as np
import pytest

from imitate.deploy.robot.lerobot_robot import LeRobotRobot
from imitate.deploy.robot.lerobot_teleoperator import LeRobotTeleoperator
from imitate.deploy.robot.limits import ActionLimits
from imitate.errors import RobotError, UserError
from imitate.system import clock
from tests.deploy.fake_robot import FakeRobot
from tests.deploy.lerobot_stand_ins import Arm, Gamepad, Leader
from tests.refusals import refused

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
    with refused(words, error=UserError):
        connected(Other())
    with refused("the robot's action is 2 numbers", error=UserError):
        connected(Leader(), FakeRobot())


def test_a_device_that_cannot_say_its_action_is_refused(no_terminal):
    class Keyboard(Leader):
        @property
        def action_features(self):
            raise AttributeError("no attribute 'arm'")

    with refused("'arm_leader' gives no action: AttributeError", error=UserError):
        connected(Keyboard())


def test_a_device_that_leaves_a_number_out_ends_the_episode():
    gamepad = Gamepad()
    gamepad.pressed, gamepad.action = {"is_intervention"}, {"delta_x": 1.0}
    with refused("gave no 'delta_y'", error=RobotError):
        connected(gamepad, FakeRobot(BOX)).guide(None)


def test_a_device_that_gives_nothing_lets_the_robot_rest(no_terminal):
    gamepad = Gamepad()
    gamepad.pressed, gamepad.action = {"is_intervention"}, {}
    assert connected(gamepad, FakeRobot(BOX)).guide(None).action is None


def test_a_device_with_events_leaves_the_terminal_alone(terminal):
    device = connected(Gamepad(), FakeRobot(BOX))
    os.write(terminal.master, b"x")
    assert device.guide(None).events == frozenset()


def test_keys_that_are_wanted_are_read_beside_the_devices_events(terminal):
    gamepad, before = Gamepad(), termios.tcgetattr(terminal.stdin)
    device = connected(gamepad, FakeRobot(BOX), keys=True)
    assert termios.tcgetattr(terminal.stdin) != before
    terminal.press("x")
    gamepad.pressed = {"success", "is_intervention"}
    assert device.guide(None).events == {"failure", "success"}
    gamepad.pressed = {"failure"}
    guidance = device.guide(None)  # without is_intervention the person does not act
    assert (guidance.action, guidance.events) == (None, {"failure"})
    device.close()
    assert termios.tcgetattr(terminal.stdin) == before


def test_the_space_bar_does_not_end_a_persons_acting_where_it_always_acts(terminal):
    device = connected(Leader())
    terminal.press(" ")
    np.testing.assert_array_equal(device.guide(None).action, [1.0, 2.0, 3.0])
    device.close()


@pytest.mark.parametrize(
    ("pressed", "event"),
    [
        ("success", "success"),
        ("failure", "failure"),
        ("terminate_episode", "failure"),
        ("success terminate_episode", "success"),
        ("rerecord_episode terminate_episode success", "redo"),
        ("", None),
    ],
)
def test_events_of_a_device(no_terminal, pressed, event):
    gamepad = Gamepad()
    gamepad.pressed = {"is_intervention", *pressed.split()}
    guidance = connected(gamepad, FakeRobot(BOX)).guide(None)
    assert guidance.events == ({event} if event else set())
    np.testing.assert_array_equal(guidance.action, [0.5, -0.5, 2.0])


@pytest.mark.parametrize(
    ("acts", "first"), [("always", "Enter success"), ("key", "space: take over, give back   Enter")]
)
def test_keys_are_shown_once(terminal, capfd, acts, first):
    connected(Leader(), acts=acts).close()
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "Enter" in line]
    assert line.startswith(first)
    assert line.endswith(
        "Enter success   x failure   Backspace discard   z redo   . end   Esc quit"
    )


def test_a_driver_that_raises_is_a_fault_of_the_robot(no_terminal):
    class Loose(Leader):
        def get_action(self):
            raise OSError("the cable\nis loose")

    with refused("LeRobot's 'arm_leader' failed: OSError: the cable", error=RobotError):
        connected(Loose()).guide(None)


def test_settings_of_a_device_by_default():
    settings = inspect.signature(LeRobotTeleoperator).parameters.values()
    assert {one.name: one.default for one in settings if one.name != "config"} == {
        "type": None, "calibrate": False, "acts": "always", "keys": None, "follow_speed": 50.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"follow_speed": 0}, "follow_speed is 0; expected a number above 0"),
        ({"follow_speed": float("nan")}, "follow_speed is nan"),
        ({"acts": "never"}, "acts is 'never'; expected always or key"),
    ],
)
def test_arguments_that_make_no_sense(options, words):
    with refused(words, error=UserError):
        LeRobotTeleoperator(Leader(), **options)


def test_a_leader_follows_no_faster_after_a_pause(terminal):
    device = connected(leader := Leader(), acts="key", follow_speed=100.0)
    for _ in range(2):
        device.follow(np.array([-99.0, 2.0, 3.0]))
        clock.sleep(5.0)
    assert leader.calls[-1][1]["shoulder.pos"] == pytest.approx(1.0 - 100.0 * 0.2)
    device.close()


def test_taking_over_by_a_key_needs_a_terminal(no_terminal):
    leader = Leader()
    with refused("needs a terminal", error=UserError):
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
    # Following begins anew, where the person has left it.
    leader.positions["shoulder"], before = 7.0, len(leader.calls)
    device.follow(target)
    assert leader.calls[before:] == [
        ("send_feedback", {**here, "shoulder.pos": 7.0}),
        ("enable_torque", None),
    ]
    device.close()


def test_a_leader_in_a_persons_hand_gets_no_feedback(no_terminal):
    leader = Leader()
    device = connected(leader)
    device.guide(None)
    device.follow(np.zeros(3))
    assert leader.calls == [("connect", False)]
