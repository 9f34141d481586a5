"""Whatever a driver or a device raises or gives: a hold or a stop, in one line that names the call."""

import io
import sys

import numpy as np
import pytest

from imitate.deploy.robot import driver
from imitate.deploy.robot.driver import DriverError, awaited, checked, first_seen, pose_of, solved
from imitate.deploy.robot.loop import ControlLoop, Safety
from imitate.deploy.robot.robot import Guidance, Observation, Teleoperator, make_robot
from imitate.errors import RobotError, UserError
from imitate.system import clock
from tests.deploy.fake_robot import Constant, FakeRobot

pytestmark = pytest.mark.usefixtures("virtual_time")


class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")


SIGHT = {"state": np.zeros(2), "camera": np.zeros((4, 4, 3), np.uint8)}


class Device(Teleoperator):
    def guide(self, observation):
        return Guidance()


def faulty(call, error=None, gives=None, at=3):
    """A robot and a device of which a call raises an error, or gives a value, at a time."""
    robot, device = FakeRobot(pose=np.zeros(2)), Device()
    owner = device if hasattr(Device, call) and not hasattr(FakeRobot, call) else robot
    right, count = getattr(owner, call), [0]

    def wrong(*args):
        count[0] += 1
        if count[0] != at:
            return right(*args)
        if error is not None:
            raise error
        return gives

    wrong.__name__ = call
    setattr(owner, call, wrong)
    return robot, device


def run(robot, device):
    made = ControlLoop(robot, Constant(), 100.0, teleoperator=device, safety=Safety(late=0))
    return made.run(6, until_success=True)


RAGGED = [[1.0], [1.0, 2.0]]
RAISED = [
    OSError("bus"),
    SystemExit(0),
    MemoryError(),
    GeneratorExit(),
    ZeroDivisionError("a\nb"),
    Mute(),
]


@pytest.mark.parametrize(
    ("call", "gives", "words"),
    [
        ("observe", None, "observe() returned NoneType, but must return an Observation"),
        ("observe", "text", "observe() returned str"),
        ("observe", Observation(None), "an Observation of NoneType, but its values must be a mapping"),
        ("observe", {**SIGHT, "state": np.array(["x"] * 2)}, "observe() gave 'state' as ndarray of shape (2,), <U1"),
        ("observe", {**SIGHT, "state": np.ma.masked_equal([0.0, 1.0], 1.0)}, "'state' as MaskedArray"),
        ("observe", {**SIGHT, "state": None}, "observe() gave 'state' as NoneType"),
        ("observe", {**SIGHT, "state": RAGGED}, "observe() gave 'state' as list"),
        ("observe", Observation(SIGHT, "now"), "observe() gave a stamp of str"),
        ("pose", np.zeros(3), "pose() gave ndarray of shape (3,), float64; wanted 2 numbers"),
        ("pose", np.array([0.0, np.nan]), "pose() gave numbers that are not finite"),
        ("pose", np.ma.array([0.0, 0.0], mask=[0, 1]), "pose() gave MaskedArray of shape (2,)"),
        ("pose", "home", "pose() gave str"),
        ("pose", None, "the robot does not report its pose any more"),
    ],
)  # fmt: skip
def test_what_is_no_observation_holds_a_step(call, gives, words):
    report = run(*faulty(call, gives=gives))
    assert report.steps == 5 and [words in reason for reason in report.held] == [True]


@pytest.mark.parametrize("error", RAISED)
@pytest.mark.parametrize("call", ["observe", "pose"])
def test_a_driver_that_cannot_see_for_a_moment_holds_a_step(call, error):
    report = run(*faulty(call, error))
    assert report.steps == 5
    assert all(f"{call}() failed ({type(error).__name__}" in reason for reason in report.held)


@pytest.mark.parametrize("error", RAISED)
@pytest.mark.parametrize("call", ["send", "success", "guide", "follow", "start_episode"])
def test_a_driver_or_device_that_raises_elsewhere_stops_the_robot(call, error):
    robot, device = faulty(call, error, at=1)
    with pytest.raises(
        RobotError,
        match=rf"^{call}\(\) failed \({type(error).__name__}[^\n]*; the robot was stopped$",
    ):
        run(robot, device)
    assert robot.last_calls()[-1] == "stop"


@pytest.mark.parametrize(
    ("call", "gives", "words"),
    [
        ("guide", None, "guide.. gave NoneType; wanted a Guidance"),
        ("guide", Guidance(np.array(["x"])), "guide.. gave ndarray .* as action; wanted numbers"),
        ("guide", Guidance(RAGGED), "guide.. gave list as action"),
        ("guide", Guidance(np.zeros(7)), "shape .7,.; wanted .2,."),
        ("guide", Guidance(np.full(2, np.nan)), "not finite"),
        ("guide", Guidance(None, None), "events that are not a set of words"),
        ("guide", Guidance(None, {1}), "events that are not a set of words"),
        ("success", "yes", "success.. gave str"),
    ],
)
def test_what_makes_no_sense_stops_the_robot(call, gives, words):
    robot, device = faulty(call, gives=gives)
    with pytest.raises(RobotError, match=words):
        run(robot, device)
    assert robot.last_calls()[-1] == "stop"


def test_a_list_of_numbers_is_an_action_and_a_set_of_words_are_events():
    robot, device = faulty("guide", gives=Guidance([0.5, 0.5], {"end"}))
    assert run(robot, device).ended_by == "end"
    np.testing.assert_array_equal(robot.sent[-1], [0.5, 0.5])


def test_an_observation_is_what_was_seen_also_where_the_driver_goes_on_writing_into_its_arrays():
    robot, seen = FakeRobot(pose=np.zeros(2)), []
    state = np.zeros(2)
    robot.observe = lambda: Observation({**SIGHT, "state": state})
    robot.send = lambda action: np.add(state, 1.0, out=state)
    ControlLoop(
        robot, Constant(), 100.0, on_step=lambda step: seen.append(step.observation.values["state"])
    ).run(3)
    np.testing.assert_array_equal(seen, [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])


def test_a_stop_that_exits_is_tried_again():
    robot, device = faulty("stop", SystemExit(0), at=1)
    run(robot, device)
    assert robot.last_calls() == ["send"] * 6 + ["stop"]


@pytest.mark.parametrize("error", ["SystemExit(0)", "OSError('no arm')", "KeyError('port')"])
def test_a_class_that_cannot_be_made_is_told_in_one_line(tmp_path, error):
    (tmp_path / "arms.py").write_text(f"class Arm:\n    def __init__(self): raise {error}\n")
    with pytest.raises(UserError, match=rf"cannot be made: {error[:6]}"):
        make_robot(f"{tmp_path / 'arms.py'}:Arm")


def test_a_new_robot_is_observed_three_times_with_pauses_of_a_twentieth_of_a_second():
    robot, began = FakeRobot(pose=np.zeros(2)), clock.now()
    looks = iter([OSError("a"), OSError("b"), SIGHT, OSError("c"), OSError("d"), OSError("e")])

    def observe():
        found = next(looks)
        if isinstance(found, OSError):
            raise found
        return found

    robot.observe = observe
    assert first_seen(robot).values.keys() == SIGHT.keys()
    assert clock.now() - began == pytest.approx(0.1)
    with pytest.raises(DriverError, match=r"^observe\(\) failed \(OSError: e; "):
        first_seen(robot)
    assert clock.now() - began == pytest.approx(0.2)
    assert list(looks) == []


def test_numbers_of_a_pose_that_are_not_finite_are_named_by_the_robots_names_if_they_fit():
    robot = FakeRobot(pose=np.array([np.inf, np.nan]))
    for names, words in (["x", "y"], "x, y"), (["x"], "0, 1"), (None, "0, 1"):
        robot.action_names = names
        with pytest.raises(
            DriverError, match=f"^pose.. gave numbers that are not finite: {words}$"
        ):
            pose_of(robot, Observation(SIGHT))
    robot.pose_now = robot.pose = lambda observation: [1, 2]
    assert pose_of(robot, Observation(SIGHT)).tolist() == [1.0, 2.0]


def test_stamps_and_keys_of_an_observation():
    for stamp in (True, "now", [1.0]):
        with pytest.raises(DriverError, match=r"^observe\(\) gave a stamp of \w+; wanted seconds$"):
            checked(Observation(SIGHT, stamp), "observe")
    for stamp in (None, 3, 0.5, np.float32(0.5)):
        assert checked(Observation(SIGHT, stamp), "observe").stamp_s == stamp
    with pytest.raises(DriverError, match=r"^look\(\) gave '1' as int; wanted numbers$"):
        checked({1: 2}, "look")


def test_a_success_is_a_truth_value_or_not_measured():
    robot = FakeRobot()
    for given, wanted in (None, None), (np.True_, True), (False, False):
        robot.success = lambda given=given: given
        assert solved(robot) is wanted


def test_lines_of_a_driver_are_written_at_once(monkeypatch):
    class Buffered(io.StringIO):
        flushed = 0

        def flush(self):
            self.flushed += 1

    monkeypatch.setattr(sys, "stderr", Buffered())
    driver.write_line("a word")
    assert (sys.stderr.getvalue(), sys.stderr.flushed) == ("a word\n", 1)


def test_a_call_that_does_not_return_is_named_after_ten_seconds(capsys):
    said = []

    def connect(seconds):
        clock.sleep(seconds)
        said.append(capsys.readouterr().err)
        return seconds

    assert (awaited(connect, 9.9), awaited(connect, 10.1)) == (9.9, 10.1)
    assert said == ["", "connect() has not returned after 10 s; Ctrl-C ends it\n"]
    with pytest.raises(DriverError, match=r"connect\(\) failed"):
        awaited(connect)
