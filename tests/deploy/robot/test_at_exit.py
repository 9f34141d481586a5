"""A robot is stopped when its process ends; the signal is as it was before, in whatever order takers are released."""

import itertools
import signal
import subprocess
import sys

import pytest

from imitate.deploy.robot.watchdog import AtExit


class Closed:
    def __init__(self):
        self.times = 0

    def close(self):
        self.times += 1


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_handler_is_as_before_in_any_order(order):
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        things = [Closed() for _ in range(3)]
        exits = [AtExit(thing.close) for thing in things]
        handlers = [signal.getsignal(signal.SIGTERM)]
        for number in order:
            exits[number].release()
            handlers.append(signal.getsignal(signal.SIGTERM))
        assert all(callable(handler) for handler in handlers[:3])
        assert handlers[3] is signal.SIG_DFL
        assert [thing.times for thing in things] == [0, 0, 0]
    finally:
        signal.signal(signal.SIGTERM, before)


PROGRAM = """
import os, signal
from imitate.deploy.robot.watchdog import AtExit
class Robot:
    def close(self):
        print("closed")
robot = Robot()
at_exit = AtExit(robot.close)
"""
TERMINATED = "os.kill(os.getpid(), signal.SIGTERM); print('lives on')"


@pytest.mark.parametrize(
    ("end", "printed", "code"),
    [
        ("", "closed\n", 0),
        (TERMINATED, "closed\n", -signal.SIGTERM),
        ("at_exit.release()", "", 0),
        (f"at_exit.release(); {TERMINATED}", "", -signal.SIGTERM),
    ],
    ids=["its end", "SIGTERM", "its end once released", "SIGTERM once released"],
)
def test_the_end_of_a_process_closes_unless_released(end, printed, code):
    command = [sys.executable, "-u", "-c", PROGRAM + end]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (printed, code), done.stderr
