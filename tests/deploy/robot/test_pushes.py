"""Pushes become actions by what keeps the robot's pose: zero, or the pose itself."""

import numpy as np
import pytest

from imitate.deploy.robot.handheld import Pushes
from imitate.deploy.robot.limits import ActionLimits
from imitate.errors import UserError
from imitate.system import clock
from tests.deploy.fake_robot import FakeRobot

pytestmark = pytest.mark.usefixtures("virtual_time")

POSE = np.array([0.5, -0.5, 0.25])


def arm(pose, low=(-1.0, -2.0, 0.0), high=(1.0, 2.0, 1.0), **faults):
    return FakeRobot(
        ActionLimits(low=low, high=high), None if pose is None else np.array(pose), faults
    )


def pushed(robot, push, mode=None, gripper=True):
    """The action of a push that lasts for 0.1 s."""
    pushes = Pushes(0.5, gripper, mode)
    pushes.connect(robot)
    pushes.tick()
    clock.sleep(0.1)
    pushes.tick()
    return pushes.action(push, robot.observe())


@pytest.mark.parametrize("mode", [None, "absolute"])
def test_on_an_arm_of_poses_what_is_not_pushed_stays(mode):
    # Half of the range of 2 in a second, for 0.1 s; the gripper stays as it is until its key is pressed.
    np.testing.assert_allclose(pushed(arm(POSE), [1.0, 0.0], mode), [0.6, -0.5, 0.25])
    np.testing.assert_allclose(
        pushed(arm(POSE), [0, 0, 1.0], mode, gripper=False), [0.5, -0.5, 0.3]
    )


def test_an_arm_that_sags_does_not_sink_while_another_number_is_pushed():
    robot, pushes = arm(POSE, low=(-9.0, -9.0, 0.0), high=(9.0, 9.0, 1.0)), Pushes(0.1, True, None)
    pushes.connect(robot)
    for step in range(1, 6):
        clock.sleep(0.05)
        pushes.tick()
        action = pushes.action([1.0, 0.0], robot.observe())
        np.testing.assert_allclose(action, [0.5 + 0.09 * step, -0.5, 0.25])
        robot.pose = lambda seen, at=action: at - [0.0, 0.1, 0.02]
    clock.sleep(0.3)  # after a pause it is where it is
    pushes.tick()
    np.testing.assert_allclose(pushes.action([0.0, 0.0], robot.observe())[1:], [-0.6, 0.23])


@pytest.mark.parametrize("mode", [None, "relative"])
def test_where_zero_keeps_the_pose_what_is_not_pushed_is_zero(mode):
    robot = arm([0.0, 0.0, 0.7], low=(-0.2, -0.1, 0.0), high=(1.0, 0.3, 1.0))
    np.testing.assert_allclose(pushed(robot, [1.0, 0.0], mode), [0.5, 0.0, 0.0])
    np.testing.assert_allclose(pushed(robot, [-1.0, 0.0], mode), [-0.1, 0.0, 0.0])


@pytest.mark.parametrize(
    ("pose", "mode", "words"),
    [
        (None, None, "unknown whether an action of zeros keeps the pose: implement pose"),
        (POSE, "relative", "an action of zeros would move it"),
    ],
)
def test_a_robot_whose_pose_does_not_fit_is_refused(pose, mode, words):
    with pytest.raises(UserError, match=words):
        pushed(arm(pose), [0.0, 0.0], mode)


def test_a_person_may_say_that_zero_keeps_the_pose():
    np.testing.assert_allclose(pushed(arm(None), [1.0, 0.0], "relative"), [0.5, 0.0, 0.0])


def test_an_arm_that_was_at_zero_when_it_was_connected_is_known_once_it_has_moved():
    robot, pushes = arm([0.0, 0.0, 0.0]), Pushes(0.5, True, None)
    pushes.connect(robot)
    robot.measured = POSE
    np.testing.assert_allclose(pushes.action([0.0, 0.0], robot.observe()), POSE)


def test_a_packet_that_is_lost_at_the_beginning_is_asked_for_again():
    robot = arm(POSE)

    def lose():
        if len(robot.times("observe")) < 3:
            raise OSError("lost packet")

    robot.faults["observe"] = lose
    np.testing.assert_allclose(pushed(robot, [1.0, 0.0]), [0.6, -0.5, 0.25])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ((0, True, None), "scale is 0, but must be a number above 0 and at most 1"),
        ((1.01, True, None), "scale is 1.01"),
        ((0.5, True, "both"), "mode is 'both'; wanted relative or absolute"),
        ((0.5, "yes", None), "gripper is 'yes'; wanted true, false or inverted"),
    ],
)
def test_settings_are_checked(settings, words):
    Pushes(1, "inverted", "absolute")
    with pytest.raises(UserError, match=words):
        Pushes(*settings)


def test_robots_without_limits_or_a_pose_are_refused():
    for limits in ({"low": (-np.inf, -2, 0)}, {"high": (np.inf, 2, 1)}):
        with pytest.raises(UserError, match="the robot's limits are infinite"):
            Pushes(0.5, True, None).connect(arm(POSE, **limits))
    with pytest.raises(UserError, match="mode absolute needs the robot's pose"):
        pushed(arm(None), [1.0, 0.0], "absolute")


def test_a_pause_counts_as_a_fifth_of_a_second():
    robot, pushes = arm(POSE), Pushes(0.5, True, None)
    pushes.connect(robot)
    pushes.tick()
    for seconds, x in ((0.15, 0.65), (0.2, 0.7), (5.0, 0.7)):
        clock.sleep(seconds)
        pushes.tick()
        assert pushes.action([1.0, 0.0], robot.observe())[0] == pytest.approx(x)


@pytest.mark.parametrize(
    ("followed", "how", "grip"),
    [
        (None, "toggle", 1.0),
        (0.4, "toggle", 1.0),
        (0.5, "toggle", 1.0),  # neither open nor closed
        (0.6, "toggle", 0.0),
        (0.6, "close", 1.0),
        (0.6, "open", 0.0),
    ],
)
def test_a_toggle_leads_to_the_other_end(followed, how, grip):
    robot, pushes = arm([0.0, 0.0, 0.0]), Pushes(0.5, True, None)
    pushes.connect(robot)
    if followed is not None:
        pushes.follow([0.0, 0.0, followed])
    pushes.grip(how)
    assert pushes.action([0.0, 0.0], robot.observe())[-1] == grip
    pushes.begin()
    assert pushes.action([0.0, 0.0], robot.observe())[-1] == 0.0


def test_without_a_gripper_its_commands_change_nothing():
    robot, pushes = arm([0.0, 0.0, 0.0]), Pushes(0.5, False, None)
    pushes.connect(robot)
    pushes.grip("close")
    pushes.follow([0.0, 0.0, 1.0])
    # the middle of 0 to 1 is kept, because 0 is no way to both sides
    assert (pushes.size, pushes.action([0.0] * 3, robot.observe()).tolist()) == (3, [0.0, 0.0, 0.5])
