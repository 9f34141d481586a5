"""Resets: whatever ends one early stops the robot at once."""

import pytest

from imitate.deploy.robot import RobotError
from imitate.deploy.watchdog import reset_robot
from imitate.errors import UserError
from tests.deploy.fake_robot import FakeRobot


class Resetting(FakeRobot):
    """Raises what it is given while it resets itself."""

    def __init__(self, error=None):
        super().__init__()
        self.error = error

    def reset(self):
        self.note("reset")
        if self.error is not None:
            raise self.error
        return self.observe()

    def reset_to(self, start):
        self.note("reset_to", start)
        return self.observe()


def test_a_reset_gives_the_observation():
    robot = Resetting()
    assert reset_robot(robot).values["state"].shape == (2,)
    reset_robot(robot, 3)
    assert [(name, value) for _, name, value in robot.calls if "reset" in name] == [
        ("reset", None),
        ("reset_to", 3),
    ]
    assert robot.last_calls() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UserError("no"), RobotError("no")])
def test_what_ends_a_reset_stops_the_robot(error):
    robot = Resetting(error)
    with pytest.raises(type(error)):
        reset_robot(robot)
    assert robot.last_calls() == ["stop"]


def test_a_driver_that_raises_in_a_reset_is_told_in_one_line():
    robot = Resetting(OSError("bus error"))
    with pytest.raises(RobotError, match=r"^reset\(\) failed \(OSError: bus error\); .* stopped$"):
        reset_robot(robot)
    assert robot.last_calls() == ["stop"]
