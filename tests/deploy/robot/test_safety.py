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
        ({"late": 5, "late_of": 3}, "of late_of=3 steps no more can be late than 3"),
        ({"late": -1}, "late is -1; wanted at least 0"),
        ({"frozen": -1}, "frozen is -1; wanted at least 0"),
        ({"frozen_pose": -1}, "frozen_pose is -1; wanted at least 0"),
        ({"unsure_steps": 0}, "unsure_steps is 0; wanted at least 1"),
        ({"max_age_s": 0.0}, "max_age_s is 0.0; wanted a finite number above 0"),
        ({"stop_above": 0.0}, "stop_above is 0.0; wanted a quantile above 0, at most 1"),
        ({"ask_above": 1.01}, "ask_above is 1.01; wanted a quantile above 0, at most 1"),
        ({"first_action": "refused"}, "'refused'; wanted approach or refuse"),
    ],
)
def test_settings_that_check_nothing_are_refused(changes, words):
    with pytest.raises(UserError, match=words):
        Safety(**changes)


def test_settings_suit_an_arm_at_10_to_30_hz():
    assert Safety() == Safety(
        **{"max_age_periods": 3.0, "max_age_s": 0.15, "hold_s": 1.0, "late": 3, "late_of": 10},
        **{"watchdog_s": 0.5, "frozen": 10, "frozen_pose": 10, "first_action": "approach"},
        **{"stop_attempts": 3, "stop_above": 1.0, "ask_above": 1.0, "unsure_steps": 3},
        most_cost=math.inf,
    )
    Safety(stop_above=1e-9, ask_above=1e-9, late=10, frozen_pose=0, unsure_steps=1)


def test_one_attempt_stops_the_robot_and_late_steps_may_be_allowed(virtual_time):
    robot = FakeRobot()
    safety = Safety(stop_attempts=1, late=0, late_of=0, frozen=0)
    ControlLoop(robot, Constant(), 100.0, safety=safety).run(2)
    assert robot.last_calls()[-1] == "stop"
