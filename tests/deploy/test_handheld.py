"""Pushes and buttons become actions: dead band, axes, holding, gripper, grace, hand-over, disconnection."""

import numpy as np
import pytest

from imitate import clock
from imitate.deploy.handheld import Handheld, Reading
from imitate.deploy.limits import ActionLimits
from imitate.deploy.loop import ControlLoop, Safety
from imitate.deploy.pushes import Pushes
from imitate.deploy.robot import RobotError
from imitate.errors import UserError
from tests.deploy.fake_robot import Constant, FakeRobot

pytestmark = pytest.mark.usefixtures("virtual_time")

ARM = ActionLimits(
    low=[-1.0] * 7, high=[1.0] * 7
)  # robosuite's: three pushes, three turns, a gripper


class Device:
    """A source of readings that a test sets."""

    name = "device"
    axes = ("x", "y", "z", "rx", "ry", "rz")

    def __init__(self):
        self.pushes, self.buttons, self.opened, self.gone = {}, set(), 0, False

    def open(self):
        self.opened += 1

    def read(self):
        if self.gone:
            raise RobotError("the device was disconnected; the robot was stopped")
        return Reading(self.pushes, frozenset(self.buttons))

    def close(self):
        self.opened -= 1


BUTTONS = {
    "rb": "act",
    "rt": "close",
    "lt": "open",
    "g": "toggle",
    "ok": "success",
    "no": "discard",
}


@pytest.fixture
def device():
    return Device()


def made(device, robot=None, gripper=True, mode="relative", scale=0.5, **rest):
    settings = {
        "axes": None, "buttons": BUTTONS, "hold": True, "dead_band": 0.1, "grace_s": 0.0, "keys": False, **rest
    }  # fmt: skip
    hand = Handheld(device, Pushes(scale, gripper, mode), **settings)
    hand.connect(robot or FakeRobot(ARM))
    hand.guide(None)  # seen at rest
    return hand


def test_nothing_moves_unless_the_button_is_held(device):
    hand = made(device)
    device.pushes = {"x": 1.0, "rz": -1.0}
    assert hand.guide(None).action is None
    device.buttons = {"rb"}
    np.testing.assert_allclose(hand.guide(None).action, [0.5, 0, 0, 0, 0, -0.5, -1.0])
    device.buttons = set()
    assert hand.guide(None).action is None


def test_what_is_held_at_the_beginning_of_an_episode_moves_nothing_and_ends_nothing(device):
    hand = made(device)
    device.pushes, device.buttons = {"x": 1.0}, {"rb"}
    assert hand.guide(None).action is not None
    hand.start_episode()  # the episode before ended by itself
    assert hand.guide(None).action is None
    device.buttons = set()
    hand.guide(None)
    device.buttons = {"rb"}
    assert hand.guide(None).action is not None
    device.buttons = {"ok"}  # pressed while the robot resets itself
    hand.start_episode()
    assert hand.guide(None).events == frozenset()
    device.buttons = set()
    hand.guide(None)
    device.buttons = {"ok"}
    assert hand.guide(None).events == {"success"}


def test_pushing_suffices_where_no_button_has_to_be_held(device):
    hand = made(device, hold=False)
    assert hand.guide(None).action is None
    device.pushes = {"y": 1.0}
    np.testing.assert_allclose(hand.guide(None).action, [0, 0.5, 0, 0, 0, 0, -1.0])
    device.pushes, device.buttons = {}, {"rb"}  # the button keeps control without a push
    np.testing.assert_allclose(hand.guide(None).action, [0, 0, 0, 0, 0, 0, -1.0])


@pytest.mark.parametrize(("push", "part"), [(0.1, 0.0), (-0.1, 0.0), (0.55, 0.5), (-1.0, -1.0)])
def test_a_push_begins_at_the_edge_of_the_dead_band(device, push, part):
    hand = made(device, scale=1.0)
    device.pushes, device.buttons = {"x": push}, {"rb"}
    np.testing.assert_allclose(hand.guide(None).action[0], part)


def test_axes_may_be_chosen_turned_around_and_left_out(device):
    hand = made(device, axes=["-y", None, "x", "rz", None, None])
    device.pushes, device.buttons = {"x": 1.0, "y": 1.0, "rz": 1.0, "z": 1.0}, {"rb"}
    np.testing.assert_allclose(hand.guide(None).action, [-0.5, 0, 0.5, 0.5, 0, 0, -1.0])


def test_actions_of_fewer_numbers_take_the_first_axes(device):
    hand = made(device, FakeRobot(), gripper=False)
    device.pushes, device.buttons = {"x": 1.0, "y": -1.0, "z": 1.0}, {"rb"}
    np.testing.assert_allclose(hand.guide(None).action, [0.5, -0.5])


def test_the_range_of_the_robot_is_what_a_push_is_a_part_of(device):
    hand = made(device, FakeRobot(ActionLimits([0.0, -4.0], [2.0, 4.0])), gripper=False)
    device.pushes, device.buttons = {"x": 1.0, "y": -1.0}, {"rb"}
    np.testing.assert_allclose(hand.guide(None).action, [1.5, -2.0])  # middle + half the half range


@pytest.mark.parametrize(
    ("robot", "settings", "words"),
    [
        (FakeRobot(ActionLimits([-1.0] * 8, [1.0] * 8)), {}, r"have 7 numbers beside the gripper, and 6 axes .*null"),
        (FakeRobot(), {"axes": ["x"], "gripper": False}, "have 2 numbers, and 1 axes are given"),
        (FakeRobot(ActionLimits([-np.inf] * 7, [np.inf] * 7)), {}, "limits are infinite"),
        (None, {"axes": ["w"]}, "there is no axis 'w'"),
        (None, {"buttons": {"rb": "act", "a": "dance"}}, "a button cannot be 'dance'"),
        (None, {"buttons": {"a": "success"}}, "nobody could act"),
        (None, {"dead_band": 1.0}, "dead_band is 1.0"),
        (None, {"grace_s": -1.0}, "grace_s is -1.0"),
        (None, {"scale": 2.0}, "scale is 2.0"),
        (None, {"gripper": "left"}, "gripper is 'left'"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_one_line(device, robot, settings, words):
    with pytest.raises(UserError, match=words):
        made(device, robot, **settings)


def test_buttons_close_open_and_toggle_the_gripper(device):
    hand = made(device)

    def grip(*buttons):
        device.buttons = {"rb", *buttons}
        return hand.guide(None).action[-1]

    assert grip() == -1.0
    assert grip("rt") == 1.0
    assert grip() == 1.0  # released, and it stays closed
    assert grip("lt") == -1.0
    assert grip("g") == 1.0
    assert grip("g") == 1.0  # still down: no second toggle
    assert grip() == 1.0
    assert grip("g") == -1.0


def test_a_gripper_may_open_upwards(device):
    hand = made(device, gripper="inverted")
    device.buttons = {"rb"}
    assert hand.guide(None).action[-1] == 1.0
    device.buttons = {"rb", "rt"}
    assert hand.guide(None).action[-1] == -1.0


def test_a_button_of_the_gripper_is_no_command_while_the_act_button_is_up(device):
    hand = made(device)
    device.buttons = {"rt"}
    assert hand.guide(None).action is None
    device.buttons = {"rb"}
    assert hand.guide(None).action[-1] == -1.0


def test_without_holding_a_button_of_the_gripper_acts_for_a_moment(device):
    hand = made(device, hold=False)
    device.buttons = {"g"}
    np.testing.assert_allclose(hand.guide(None).action, [0, 0, 0, 0, 0, 0, 1.0])


def test_taking_over_keeps_the_gripper_as_the_policy_left_it(device):
    hand = made(device)
    hand.follow(np.array([0, 0, 0, 0, 0, 0, 1.0]))
    device.buttons = {"rb"}
    assert hand.guide(None).action[-1] == 1.0
    device.buttons = {"rb", "lt"}
    assert hand.guide(None).action[-1] == -1.0
    hand.follow(np.array([0, 0, 0, 0, 0, 0, 0.6]))  # the person's own, shortened by the limits
    device.buttons = {"rb"}
    assert hand.guide(None).action[-1] == -1.0


def test_after_a_push_the_pose_is_kept_for_a_moment(device):
    hand = made(device, grace_s=0.15)
    device.pushes, device.buttons = {"x": 1.0}, {"rb", "rt"}
    assert hand.guide(None).action[0] == 0.5
    device.buttons = set()
    np.testing.assert_allclose(hand.guide(None).action, [0, 0, 0, 0, 0, 0, 1.0])
    clock.sleep(0.2)
    assert hand.guide(None).action is None


def test_buttons_end_episodes_once_and_the_next_one_begins_at_rest(device):
    hand = made(device)
    device.pushes, device.buttons = {"x": 1.0}, {"rb", "rt"}
    assert hand.guide(None).action is not None
    device.buttons = {"rb", "ok"}
    guidance = hand.guide(None)
    assert (guidance.action, guidance.events) == (None, {"success"})
    assert hand.guide(None) == type(guidance)(
        None, frozenset()
    )  # still held: it waits to be released
    device.buttons = set()
    assert hand.guide(None).action is None
    device.buttons = {"rb"}
    np.testing.assert_allclose(
        hand.guide(None).action, [0.5, 0, 0, 0, 0, 0, -1.0]
    )  # and it is open


def test_a_device_that_is_pushed_at_the_beginning_does_nothing_until_it_is_released(device):
    device.pushes, device.buttons = {"x": 1.0}, {"ok"}
    hand = made(device, hold=False)
    assert hand.guide(None).action is None
    assert hand.guide(None).events == frozenset()  # nor is a button that was down before an event
    device.pushes = {}
    hand.guide(None)
    device.pushes = {"x": 1.0}
    assert hand.guide(None).action[0] == 0.5


def test_absolute_actions_begin_at_the_pose(device):
    robot = FakeRobot(pose=np.array([0.2, 0.4]))
    hand = made(device, robot, gripper=False, mode="absolute", scale=1.0)
    device.pushes, device.buttons = {"x": 1.0}, {"rb"}
    clock.sleep(0.05)
    action = hand.guide(robot.observe()).action
    np.testing.assert_allclose(action, [0.2 + 2.0 * 0.05, 0.4])


@pytest.mark.parametrize("policy", [None, Constant((0.1, 0.2))])
def test_nothing_is_sent_after_the_device_is_gone(device, policy):
    robot = FakeRobot()
    hand = made(device, robot, gripper=False, hold=False)

    def vanish():  # the person pushes from the second step on
        device.pushes = {"x": 1.0} if len(robot.times("observe")) > 3 else {}
        device.gone = len(robot.times("observe")) > 6

    robot.faults["observe"] = vanish
    loop = ControlLoop(robot, policy, 100.0, teleoperator=hand, safety=Safety(late=0))
    with pytest.raises(RobotError, match="was disconnected; the robot was stopped"):
        loop.run(100)
    first = "send" if policy else "hold"
    assert robot.last_calls() == [first, *["send"] * 3, "stop"]
    assert robot.times("stop")[0] == robot.times("observe")[-1]


def test_the_device_is_let_go(device):
    hand = made(device)
    assert device.opened == 1
    hand.close()
    assert device.opened == 0
