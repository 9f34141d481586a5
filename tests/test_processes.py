"""Worker processes: kill -9 of the parent leaves none, whatever they do; hangs are told from long work."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from imitate.processes import MAKE, Lost, Worker, heard

PARENT = """
import multiprocessing, sys, time
from imitate.processes import Worker
from tests.test_processes import busy, idle, sleeping
if __name__ == "__main__":
    worker = Worker({"busy": busy, "idle": idle, "sleeping": sleeping}[sys.argv[1]])
    worker.connection.recv()
    print(multiprocessing.active_children()[0].pid, flush=True)
    time.sleep(1000)
"""


def idle(connection, pulse):
    connection.send("begun")
    connection.recv()


def sleeping(connection, pulse):
    connection.send("begun")
    time.sleep(1000)


def busy(connection, pulse):
    """Hangs in one call that never lets another thread of Python run."""
    connection.send("begun")
    sum(range(10**15))


@pytest.mark.parametrize("what", ["idle", "sleeping", "busy"])
def test_no_worker_outlives_its_parent(tmp_path, what):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    root = str(Path(__file__).parents[1])
    parent = subprocess.Popen(
        [sys.executable, script, what],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    try:
        worker = int(parent.stdout.readline())
    finally:
        parent.kill()
        parent.communicate()
    deadline = time.monotonic() + 60
    while is_running(worker):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def calling(connection, pulse, calls):
    """Makes calls that take so many seconds each, then answers."""
    for call, seconds in calls:
        pulse(call)
        time.sleep(seconds)
    pulse("")
    connection.send("done")
    connection.recv()


def outcome(calls, limit_s):
    worker = Worker(calling, (calls,))
    try:
        while not heard([worker], limit_s):
            pass
        return worker.answer(limit_s)
    finally:
        worker.stop()


def test_many_short_calls_and_long_work_of_ones_own_are_no_hang():
    assert outcome([("step()", 0.2)] * 8 + [("", 2.0), (MAKE, 1.5)], 1.0) == "done"


def test_one_long_call_is_a_hang_that_is_named():
    lost = Lost("render() did not return within 0.5 s", died=True)
    assert outcome([("step()", 0.0), ("render()", 1000)], 0.5) == lost
    lost = Lost("making the environment did not return within 1.5 s", died=True)
    assert outcome([(MAKE, 1000)], 0.3) == lost


def test_a_process_that_dies_is_named_with_the_call_in_which_it_did():
    assert outcome([("reset()", -1.0)], None).reason == "its process died in reset() (exit code 1)"
