"""Resets and stops: whatever ends a reset early stops the robot at once; a stop that hangs is reported."""

import threading

import numpy as np
import pytest

from imitate.deploy.robot.loop import ControlLoop, Safety
from imitate.deploy.robot.watchdog import Watchdog, reset_robot, stop_robot
from imitate.errors import RobotError, UserError
from imitate.system import clock
from tests.deploy.fake_robot import Constant, FakeRobot


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
    resets = [(name, value) for _, name, value in robot.calls if "reset" in name]
    assert resets == [("reset", None), ("reset_to", 3)]
    assert robot.last_calls() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UserError("no"), RobotError("no")])
def test_what_ends_a_reset_stops_the_robot(error):
    robot = Resetting(error)
    with pytest.raises(type(error)):
        reset_robot(robot)
    assert robot.last_calls() == ["stop"]


@pytest.mark.parametrize("error", [OSError("bus error"), SystemExit(0), MemoryError()])
def test_a_driver_that_raises_or_exits_in_a_reset_is_told_in_one_line(error):
    robot, name = Resetting(error), type(error).__name__
    with pytest.raises(
        RobotError, match=rf"^reset\(\) failed \({name}(: .*)?; .*, line \d+\); .* stopped$"
    ):
        reset_robot(robot)
    assert robot.last_calls() == ["stop"]


def said_at(capsys, virtual_time, after_s):
    """Return the text that is written so many seconds later."""
    clock.sleep(after_s)
    return capsys.readouterr().err


def test_the_watchdog_speaks_at_once_while_the_driver_hangs(virtual_time, capsys):
    """All of it behind a lock that `observe` holds: the robot cannot be stopped, and a person has to know."""
    robot, bus, said = FakeRobot(), threading.Lock(), []

    def observe():
        if len(robot.times("observe")) == 3:
            bus.acquire()
            # errors of this call would be taken for the driver's
            said.extend(
                said_at(capsys, virtual_time, seconds) for seconds in (0.08, 0.02, 0.28, 0.02)
            )
            bus.release()

    robot.faults |= {"observe": observe, "stop": lambda: clock.acquire(bus, 5.0) and bus.release()}
    with pytest.raises(RobotError, match="watchdog"):
        ControlLoop(robot, Constant(), 100.0, safety=Safety(watchdog_s=0.1, late=0)).run(9)
    fired = "no control step ended within 0.1 s, so the watchdog fired: stopping the robot"
    hint = "; Ctrl-C ends the command if the hanging call does not return\n"
    stopping = "stop() has not returned after 0.3 s: PRESS THE EMERGENCY STOP\n"
    assert said == ["", fired + hint, "", stopping]


@pytest.mark.parametrize("command", ["send", "hold", "skip"])
def test_nothing_is_sent_after_a_stop_and_what_was_under_way_is_stopped_again(command):
    robot = FakeRobot()
    dog = Watchdog(robot, 1.0)
    give = {"send": lambda: dog.send(np.zeros(2)), "hold": dog.hold, "skip": dog.skip}[command]
    robot.faults[command] = lambda: dog.stop("the arm is gone")
    if command == "skip":
        dog.stop("the arm is gone")
    with pytest.raises(RobotError, match="^the arm is gone; the robot was stopped$"):
        give()
    before = ["stop"] if command == "skip" else [command, "stop", "stop"]
    assert robot.last_calls() == before
    dog.stop("later")  # the first reason stays
    with pytest.raises(RobotError, match="^the arm is gone; the robot was stopped$"):
        give()
    assert robot.last_calls() == [*before, "stop"]


def test_a_stop_that_returns_in_time_says_nothing(virtual_time, capsys):
    robot = FakeRobot()
    robot.faults["stop"] = lambda: clock.sleep(0.29)
    stop_robot(robot)
    assert said_at(capsys, virtual_time, 1.0) == ""


@pytest.mark.parametrize(
    ("options", "tries"), [({}, 3), ({"attempts": 1}, 1), ({"attempts": 4}, 4)]
)
def test_a_stop_that_fails_is_tried_again_after_growing_pauses(virtual_time, options, tries):
    robot = FakeRobot()

    def fail():
        raise OSError("bus error")

    robot.faults["stop"] = fail
    with pytest.raises(
        RobotError,
        match=rf"^stop\(\) failed {tries} times \(OSError: bus error.*PRESS THE EMERGENCY STOP$",
    ):
        stop_robot(robot, **options)
    assert np.diff(robot.times("stop")) == pytest.approx([0.02, 0.04, 0.06][: tries - 1])


def test_a_stop_that_works_the_second_time_is_no_failure(virtual_time):
    robot, left = FakeRobot(), [OSError("bus error")]

    def fail():
        if left:
            raise left.pop()

    robot.faults["stop"] = fail
    stop_robot(robot)
    assert robot.last_calls() == ["stop", "stop"]


def test_ctrl_c_takes_effect_once_the_robot_is_stopped(virtual_time):
    robot, left = FakeRobot(), [KeyboardInterrupt()]

    def interrupt():
        if left:
            raise left.pop()

    robot.faults["stop"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        stop_robot(robot)
    assert robot.last_calls() == ["stop", "stop"]
