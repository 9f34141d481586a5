"""A robot is stopped when its process ends; the signal is as it was before, in whatever order takers are released."""

import atexit
import itertools
import os
import signal
import subprocess
import sys

import pytest

from imitate.deploy.at_exit import AtExit


class Closed:
    def __init__(self):
        self.times = 0

    def close(self):
        self.times += 1


def in_a_fork(body):
    """Run a function in a forked process, which ends as Python does; return its wait status and what it printed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(writer, 1)
            body()
            atexit._run_exitfuncs()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as output:
        printed = output.read()
    return os.waitpid(child, 0)[1], printed


class Telling:
    def close(self):
        os.write(1, b"closed ")


def test_the_end_of_the_process_closes():
    things = []

    def body():
        atexit._clear()
        kept, released = Telling(), Telling()
        AtExit(kept.close)
        AtExit(released.close).release()
        things.append(kept)

    status, printed = in_a_fork(body)
    assert (os.waitstatus_to_exitcode(status), printed) == (0, "closed ")


def test_sigterm_closes_and_then_ends_the_process():
    def body():
        atexit._clear()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        thing = Telling()
        AtExit(thing.close)
        os.kill(os.getpid(), signal.SIGTERM)
        os.write(1, b"goes on")

    status, printed = in_a_fork(body)
    assert (os.waitstatus_to_exitcode(status), printed) == (-signal.SIGTERM, "closed ")


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
from imitate.deploy.at_exit import AtExit
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
