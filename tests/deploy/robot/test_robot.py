"""Checks of a robot's class, before anything moves."""

import pytest

from imitate.deploy.robot.loop import ControlLoop
from imitate.deploy.robot.robot import check_declared
from imitate.errors import RobotError, UserError
from tests.deploy.fake_robot import Constant, FakeRobot
from tests.refusals import refused


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("limits", {"low": -1}, "FakeRobot.limits is |; wanted ActionLimits"),
        ("rate_hz", "15", "FakeRobot.rate_hz is '15'; wanted a number above 0"),
        ("rate_hz", 0, "rate_hz is 0"),
        ("camera_hz", 0.0, "camera_hz is 0.0"),
        ("camera_hz", True, "camera_hz is True"),
        ("observation_shapes", {"state": 2}, "observation_shapes is |; wanted a shape for each"),
        ("observation_shapes", None, "observation_shapes is None"),
        ("action_names", ("yaw",), "action_names has 1 names (yaw)|an action has 2 numbers"),
        ("action_names", "xy", "action_names is 'xy'; wanted a tuple of names"),
        ("observation_names", {"state": ("yaw",) * 3}, "['state'] has 3 names |'state' has 2"),
    ],
)
def test_an_attribute_that_makes_no_sense_is_named(name, value, words):
    robot = FakeRobot()
    check_declared(robot)
    setattr(robot, name, value)
    with refused(words, error=UserError):
        check_declared(robot)


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("shapes", [{"state": (3,)}, {"state": (2,), "joints": (6,)}])
def test_a_robot_that_gives_other_shapes_than_it_says_is_not_moved(shapes):
    robot = FakeRobot()
    robot.observation_shapes = shapes
    with refused("not moved: observe() gives '|observation_shapes has", error=RobotError):
        ControlLoop(robot, Constant(), 20.0, any_rate=True).run(3)
    assert robot.last_calls() == ["stop"]
