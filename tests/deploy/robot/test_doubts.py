"""A policy that does not know: the robot is stopped, or a person is asked."""

import numpy as np
import pytest
import torch

from imitate.deploy.robot.loop import ControlLoop, Safety
from imitate.deploy.robot.robot import Guidance
from imitate.errors import RobotError, UserError
from imitate.policy.uncertainty import Calibration
from tests.deploy.fake_robot import Constant, FakeRobot, Scripted

pytestmark = pytest.mark.usefixtures("virtual_time")

BY_HAND = Guidance(np.array([0.3, 0.3]))


class Unsure(Constant):
    """A policy whose uncertainty has the rank 0.95 in given steps, else 0, with a cost."""

    calibration = Calibration.of([1.0], held_out=True)

    def __init__(self, *steps, cost=0.0):
        super().__init__()
        self.steps, self.last_extras = steps, {"cost": torch.tensor([cost])}

    @property
    def uncertainty_rank(self):
        return np.array([0.95 if self.step in self.steps else 0.0])


def run(policy, steps=8, teleoperator=None, robot=None, **rules):
    robot = robot or FakeRobot()
    safety = Safety(late=0, **rules)
    loop = ControlLoop(robot, policy, 100.0, safety=safety, teleoperator=teleoperator)
    return robot, loop.run(steps)


def test_a_policy_that_is_unsure_for_some_steps_stops_the_robot():
    robot = FakeRobot()
    with pytest.raises(RobotError, match="above the 0.9 quantile .* for 3 steps"):
        run(Unsure(2, 4, 5, 6), robot=robot, stop_above=0.9)
    assert robot.last_calls() == ["send"] * 5 + ["stop"]
    with pytest.raises(RobotError, match="above the 0.95 quantile"):  # its rank
        run(Unsure(4, 5, 6), stop_above=0.95)
    for calm in ({}, {"stop_above": 0.96}, {"stop_above": 0.9, "unsure_steps": 4}):
        robot, _ = run(Unsure(2, 4, 5, 6), **calm)
        assert robot.last_calls() == ["send"] * 8 + ["stop"]


def test_a_person_is_asked_and_the_robot_waits():
    """For longer than an action may be missing otherwise; the policy then plans anew."""
    hand, policy = Scripted({step: BY_HAND for step in (7, 8)}), Unsure(*range(2, 9))
    robot, report = run(policy, 10, hand, ask_above=0.9, unsure_steps=2, hold_s=0.02)
    assert robot.last_calls() == ["send"] * 2 + ["hold"] * 4 + ["send"] * 4 + ["stop"]
    assert report.held == {"the policy is unsure, and a person is asked to act": 4}
    assert report.interventions == 2 and policy.cuts == 4


def test_a_predicted_cost_stops_the_robot():
    run(Unsure(cost=2.0), most_cost=2.0)
    with pytest.raises(RobotError, match="predicts a cost of 2, above most_cost 1.5"):
        run(Unsure(cost=2.0), most_cost=1.5)


@pytest.mark.parametrize(
    ("policy", "rules", "words"),
    [
        (Constant(), {"stop_above": 0.9}, "reports no uncertainty"),
        (Unsure(), {"ask_above": 0.9}, "--take-over"),
        (Unsure(), {"stop_above": 0.0}, "above 0, at most 1"),
        (Unsure(), {"unsure_steps": 0}, "at least 1"),
    ],
)
def test_rules_that_could_not_apply_are_refused(policy, rules, words):
    with pytest.raises(UserError, match=words):
        run(policy, **rules)
