"""Names of joints in a policy's data against those of the robot."""

import logging
from types import SimpleNamespace

import pytest

from imitate.deploy.robot.lerobot_robot import LeRobotRobot
from imitate.deploy.robot.loop import ControlLoop, check_names
from imitate.errors import UserError
from tests.deploy.lerobot_stand_ins import Arm

ORDER = ["shoulder.pos", "elbow.pos", "gripper.pos"]


def policy(state=ORDER, actions=ORDER):
    return SimpleNamespace(
        obs_keys=("state",), number_names={"state": state, "actions": actions, "effort": ["a"]}
    )


def test_equal_names_pass_and_so_do_policies_that_know_none(caplog):
    check_names(LeRobotRobot(Arm()), policy())
    check_names(LeRobotRobot(Arm()), SimpleNamespace(obs_keys=("state",)))
    assert not caplog.records


@pytest.mark.parametrize("key", ["state", "actions"])
def test_another_order_is_refused_before_anything_moves(key):
    swapped = policy(**{key: [ORDER[1], ORDER[0], ORDER[2]]})
    with pytest.raises(UserError, match=f"'{key}' is .shoulder.pos, elbow.pos.*was .elbow.pos, sh"):
        ControlLoop(LeRobotRobot(Arm()), swapped, 30.0)


def test_some_names_in_common_are_another_robot():
    with pytest.raises(UserError, match="use the robot of the data"):
        check_names(LeRobotRobot(Arm()), policy(actions=["shoulder.pos", "wrist.pos"]))


def test_names_of_an_earlier_release_are_reported(caplog):
    with caplog.at_level(logging.WARNING):
        check_names(LeRobotRobot(Arm()), policy(state=["main_a", "main_b", "main_c"]))
    assert "make sure that the order is the same" in caplog.text
