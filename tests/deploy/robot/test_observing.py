"""Nothing is decided on an observation that is old by the time of the action, nor begun at a pose of before."""

import math

import numpy as np
import pytest

from imitate.deploy.robot.limits import ActionLimits
from imitate.deploy.robot.loop import ControlLoop, Safety
from imitate.deploy.robot.observing import Observer, not_finite
from imitate.deploy.robot.robot import Observation
from imitate.errors import RobotError
from imitate.system import clock
from tests.deploy.fake_robot import Constant, FakeRobot, Pushing

pytestmark = pytest.mark.usefixtures("virtual_time")

RATE = 20.0
CALM = Safety(late=0, watchdog_s=5.0)


@pytest.mark.parametrize("stamped", [True, False])
@pytest.mark.parametrize("person", [None, Pushing((0.3, 0.0))])
def test_an_action_that_comes_four_periods_late_is_not_sent(stamped, person):
    robot, steps = FakeRobot(stamped=stamped), []
    policy = Constant(lambda step: clock.sleep(0.2 if step == 3 else 0) or (0.1, 0.1))
    made = ControlLoop(
        robot, policy, RATE, teleoperator=person, any_rate=True, safety=CALM, on_step=steps.append
    )
    report = made.run(4)
    assert robot.last_calls() == ["send", "send", "hold", "send", "stop"]
    assert report.held == {"the action came too late": 1}
    assert [step.action is None for step in steps] == [False, False, True, False]


@pytest.mark.parametrize("ahead_s", [1e9, 1.0, 0.05, math.nan, -3600.0])
def test_stamps_of_another_clock_are_no_sign_of_freshness(ahead_s):
    robot = FakeRobot()
    robot.age_s = -ahead_s
    with pytest.raises(RobotError, match=r"stamp.* not from time.monotonic\(\)"):
        ControlLoop(robot, Constant(), RATE, any_rate=True, safety=Safety(late=0, hold_s=0.1)).run(
            20
        )
    assert len(robot.sent) == 0


def test_a_stamp_slightly_ahead_is_fresh():
    robot = FakeRobot()
    robot.age_s = -0.01
    assert ControlLoop(robot, Constant(), RATE, any_rate=True, safety=CALM).run(2).steps == 2


@pytest.mark.parametrize(
    ("age_s", "words"),
    [
        (0.15, ""),
        (0.16, "the observation is old"),
        (9.9, "the observation is old"),
        (10.1, "the observation is more than 10 s old by its stamp"),
        (-0.019, ""),
        (-0.021, "the observation's stamp is not from time.monotonic()"),
    ],
)
def test_ages_by_hand(age_s, words):
    robot = FakeRobot()
    robot.age_s = age_s
    observer = Observer(robot, 0.01, Safety())
    observer.first()
    clock.sleep(0.01)
    fault = observer.next()[1]
    assert fault.startswith(words) and bool(fault) == bool(words)


@pytest.mark.parametrize(
    ("period_s", "camera_hz", "in_step", "oldest_s"),
    [(0.1, None, False, 0.3), (0.01, None, False, 0.15), (0.01, 5.0, False, 0.3), (1, 5.0, True, math.inf)],
)  # fmt: skip
def test_the_oldest_observation(period_s, camera_hz, in_step, oldest_s):
    robot = FakeRobot()
    robot.camera_hz, robot.in_step = camera_hz, in_step
    assert Safety().oldest_s(period_s, robot) == pytest.approx(oldest_s)


def test_numbers_that_are_not_finite_are_named():
    seen = Observation({"a": np.ones(2), "b": np.array([0.0, np.inf])}, None)
    assert not_finite(seen, ()) == "observation 'b' is not finite" == not_finite(seen, ("a", "b"))
    assert not_finite(seen, ("a", "c")) == ""


class Moved(FakeRobot):
    """A robot that tells its pose and is moved by hand."""

    place = 0.0

    def observe(self):
        seen = super().observe()
        values = {**seen.values, "state": np.full(2, self.place, np.float32)}
        return Observation(values, seen.stamp_s)

    def pose(self, observation):
        return np.asarray(observation.values["state"], dtype=float)


def test_a_robot_that_was_moved_while_the_network_was_loaded_does_not_jump_back():
    robot = Moved(ActionLimits(low=[-1, -1], high=[1, 1], speed=1.0))

    def act(step):
        robot.place = 0.5  # since the first call, before the robot moves
        return (0.6, 0.6)

    ControlLoop(robot, Constant(act), RATE, any_rate=True, safety=CALM).run(3)
    np.testing.assert_allclose(robot.sent[:, 0], [0.55, 0.6, 0.6])  # 1/20 a step, from 0.5
    assert robot.last_calls()[0] == "send"  # two readings agreed before the episode


def test_the_first_command_begins_at_the_newest_pose():
    class Pushed(Moved):
        """A robot that is pushed by hand just before the first control step."""

        @property
        def place(self):
            return 0.05 * (len(self.times("observe")) > 3)

    robot = Pushed(ActionLimits(low=[-1, -1], high=[1, 1], speed=1.0))
    ControlLoop(robot, Constant((0.6, 0.6)), RATE, any_rate=True, safety=CALM).run(2)
    np.testing.assert_allclose(robot.sent[:, 0], [0.1, 0.15])


@pytest.mark.parametrize(
    ("ages", "held"),
    [
        ([0.03, 0.0, 0.1, 0.0, 0.05, 0.0], [0, 0, 1, 0, 1, 0]),  # packets that are delivered again
        ([0.0, 0.02, 0.0, 0.01, 0.0, 0.025], [0] * 6),  # within the rounding of clocks
        (
            [0.0, -5.0, 0.0, 0.0, 0.0, 0.0],
            [0, 1, 0, 0, 0, 0],
        ),  # one stamp ahead explains no later one
    ],
)
def test_an_observation_that_is_older_than_one_before_it_is_not_acted_on(ages, held):
    robot, seen = FakeRobot(), []
    observer = Observer(robot, 0.01, Safety(frozen=0))
    observer.first()
    for age in ages:
        clock.sleep(0.01)
        robot.age_s = age
        seen.append(bool(observer.next()[1]))
    assert seen == [bool(one) for one in held]
