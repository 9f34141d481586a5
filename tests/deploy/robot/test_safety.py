"""Settings of the loop that would switch a check off without saying so are refused."""

import math

import pytest

from imitate.deploy.robot.loop import ControlLoop, Safety
from imitate.errors import UserError
from tests.deploy.fake_robot import Constant, FakeRobot


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stop_attempts": 0}, "stop_attempts is 0; wanted at least 1"),
        ({"max_age_periods": math.nan}, "max_age_periods is nan; wanted a finite number above 0"),
        ({"hold_s": math.nan}, "hold_s is nan"),
        ({"watchdog_s": math.inf}, "watchdog_s is inf"),
        ({"late": 5, "late_of": 3}, "which is impossible"),
        ({"late": -1}, "late is -1; wanted at least 0"),
        ({"first_action": "refused"}, "'refused'; wanted approach or refuse"),
    ],
)
def test_settings_that_check_nothing_are_refused(changes, words):
    with pytest.raises(UserError, match=words):
        Safety(**changes)


def test_one_attempt_stops_the_robot_and_late_steps_may_be_allowed(virtual_time):
    robot = FakeRobot()
    safety = Safety(stop_attempts=1, late=0, late_of=0, frozen=0)
    ControlLoop(robot, Constant(), 100.0, safety=safety).run(2)
    assert robot.last_calls()[-1] == "stop"
