"""Checks of a robot's class, before anything moves."""

import pytest

from imitate.deploy.robot.limits import ActionLimits
from imitate.deploy.robot.loop import ControlLoop
from imitate.deploy.robot.robot import (
    Observation,
    Robot,
    check_declared,
    make_robot,
    make_teleoperator,
)
from imitate.deploy.robot.simulated import ExpertTeleoperator
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


class Least(Robot):
    """A robot with the fewest methods."""

    def __init__(self):
        self.limits, self.observation_shapes, self.stops = ActionLimits([-1.0], [1.0]), {}, 0

    def observe(self):
        return Observation({})

    def send(self, action):
        raise AssertionError

    def stop(self):
        self.stops += 1


def test_a_robot_with_the_fewest_methods():
    robot = Least()
    robot.hold()
    assert robot.stops == 1
    assert (robot.pose(None), robot.reset(), robot.success(), robot.reward()) == (None,) * 4
    assert robot.ended() is False and robot.in_step is False
    assert robot.connect() is robot.close() is None
    robot.reset = lambda: "begun"
    assert robot.reset_to(3) == "begun"


@pytest.mark.parametrize("rate", [1e-3, 0.5, 1, 15.0, None])
def test_any_rate_above_zero_fits(rate):
    robot = Least()
    robot.rate_hz = robot.camera_hz = rate
    check_declared(robot)


@pytest.mark.parametrize("rate", [float("inf"), float("nan"), -1.0])
def test_a_rate_is_finite_and_above_zero(rate):
    robot = Least()
    robot.camera_hz = rate
    with refused(f"Least.camera_hz is {rate!r}; wanted a number above 0, or None", error=UserError):
        check_declared(robot)


def test_names_of_numbers_fit_them():
    robot = Least()
    robot.action_names, robot.observation_shapes = ("x",), {"a": (2, 2), "b": [1]}
    robot.observation_names = {"a": ("p", "q", "r", "s"), "unknown": ("z",) * 9}
    check_declared(robot)
    robot.observation_names = {"a": ("p", 1, "r", "s")}
    with refused(
        "Least.observation_names['a'] is ('p', 1, 'r', 's'); wanted a tuple", error=UserError
    ):
        check_declared(robot)


def test_only_devices_may_be_experts():
    assert isinstance(make_teleoperator("expert:Lift"), ExpertTeleoperator)
    with refused("the robot 'expert:Lift' (expert:Lift) cannot be imported: ", error=UserError):
        make_robot("expert:Lift")
    with refused(
        "is a ExpertTeleoperator, but must be a subclass of imitate.deploy.Robot", error=UserError
    ):
        make_robot("imitate.deploy.robot.simulated:ExpertTeleoperator", task="Lift")
    with refused(
        "is a Least, but must be a subclass of imitate.deploy.Teleoperator", error=UserError
    ):
        make_teleoperator("tests.deploy.robot.test_robot:Least")
    with refused("did you mean 'lerobot:so101_follower'?", error=UserError):
        make_robot("so101_follower")
