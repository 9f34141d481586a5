"""A robot for subprocesses that writes each call with its time to a file, and may be interrupted at one of them."""

import contextlib
import os
import signal
import time

import numpy as np

from imitate.deploy.robot.limits import ActionLimits
from imitate.deploy.robot.robot import Guidance, Observation, Robot, Teleoperator
from imitate.system import clock

made = []
"""Robots of this process."""


class LoggedRobot(Robot):
    """One joint and a camera.

    Args:
        log: file for the lines "time call"; None: only :attr:`calls`.
        size: of the camera's square images.
        in_step: time does not matter to the control loop; the robot takes 10 ms for an observation.
        interrupt_at: number of the call in which Ctrl-C is pressed, from 1; 0: none.
    """

    limits = ActionLimits([-1.0], [1.0])

    def __init__(self, log=None, size=8, interrupt_at=0, in_step=False):
        self.in_step = in_step
        self.observation_shapes = {"flat": (3,), "camera": (size, size, 3)}
        self.log = None if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.size, self.interrupt_at, self.calls = size, interrupt_at, []
        self.random = np.random.default_rng(0)
        made.append(self)

    def note(self, call):
        self.calls.append(call)
        if self.log is not None:
            os.write(self.log, f"{time.time():.6f} {call}\n".encode())
        if len(self.calls) == self.interrupt_at:
            raise KeyboardInterrupt

    def connect(self):
        self.note("connect")

    def close(self):
        self.note("close")

    def observe(self):
        self.note("observe")
        clock.sleep(0.01 * self.in_step)
        camera = self.random.integers(0, 255, (self.size, self.size, 3), np.uint8)
        return Observation({"flat": np.zeros(3, np.float32), "camera": camera}, clock.now())

    def send(self, action):
        self.note("send")

    def hold(self):
        self.note("hold")

    def stop(self):
        self.note("stop")

    def reset(self):
        self.note("reset")

    def success(self):
        self.note("success")
        return False

    def pose(self, observation):
        self.note("pose")
        return np.zeros(1)


class Taking(LoggedRobot):
    """A driver that takes a signal for itself in one of its calls, like ROS 1's; the signal comes in its third send."""

    def __init__(self, number, where):
        self.number, self.where = number, where
        super().__init__()
        self.note("made")

    def note(self, call):
        super().note(call)
        if call == self.where and self.calls.count(call) == 1:
            signal.signal(self.number, lambda number, frame: None)
        if self.calls.count("send") == 3 and call == "send":
            signal.raise_signal(self.number)


class Steady(Teleoperator):
    """A person who always pushes, and presses ``success`` every so many steps."""

    def __init__(self, every=3):
        self.every, self.step = every, 0

    def guide(self, observation):
        self.step += 1
        pressed = {"success"} if self.step % self.every == 0 else set()
        return Guidance(np.array([0.1]), frozenset(pressed))


class Dropping(Steady):
    """A device in whose fifth step a signal comes, and is dropped, as Python does in finalizers."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def guide(self, observation):
        guidance = super().guide(observation)
        if self.step == 5:
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(self.number)
        return guidance


def moves(calls):
    """The calls that move the robot or stop it."""
    return [call for call in calls if call in ("send", "hold", "reset", "stop")]


def logged(path):
    """The times and calls of a log."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return [(float(when), call) for when, call in lines]
