"""Robot and policy are compared before the robot is connected, and before it moves."""

import numpy as np
import pytest

from imitate.deploy.robot.fitting import check_sizes
from imitate.deploy.robot.limits import ActionLimits
from imitate.deploy.schema import ObservedKey, Schema
from imitate.errors import UserError
from tests.deploy.fake_robot import FakeRobot

SEEN = {"state": ObservedKey((2,)), "camera": ObservedKey((4, 4, 3), "rgb")}


def schema(size=2, **observations):
    return Schema({**SEEN, **observations}, size, (-1.0,) * size, (1.0,) * size)


def test_sizes_that_agree_and_what_is_not_known_yet_pass():
    check_sizes(FakeRobot(), schema(), False)
    check_sizes(FakeRobot(), None, False)
    check_sizes(FakeRobot(), schema(camera=ObservedKey((2, 2, 3), "rgb")), resizes=True)

    class Late(FakeRobot):
        limits = property(lambda self: self.unknown, lambda self, value: None)

    check_sizes(Late(), schema(7), False)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (schema(3), "takes actions of 2 numbers, but the policy returns 3"),
        (schema(state=ObservedKey((8,))), "'state' of the robot has 2 numbers, but the policy was trained with 8"),
        (schema(camera=ObservedKey((8, 4, 3), "rgb")), "of the robot is 4 x 4 x 3, but .* 8 x 4 x 3: use --resize"),
    ],
)  # fmt: skip
def test_other_sizes_are_refused(wanted, words):
    robot = FakeRobot(ActionLimits(np.full(2, -1.0), np.full(2, 1.0)))
    with pytest.raises(UserError, match=words):
        check_sizes(robot, wanted, resizes=False)
    assert robot.calls == []  # nothing of its driver was called
