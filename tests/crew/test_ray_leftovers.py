"""Only what a private cluster has started ends with the command."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.crew.test_ends import is_running

PROGRAM = """
import subprocess, sys, time
from imitate.crew import ray_leftovers

def child():
    return subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"])

ray_leftovers.PATIENCE_S = 0.2
mine, others = child(), ray_leftovers.descendants()
of_cluster = child()
with ray_leftovers.ended_with_this_process(ray_leftovers.descendants() - others):
    print(mine.pid, of_cluster.pid, flush=True)
    time.sleep(1000 if sys.argv[1] == "killed" else 0)
time.sleep(1.0)
"""


@pytest.mark.parametrize("end", ["killed", "closed"])
def test_processes_of_the_program_itself_are_left_alone(end):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, end],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    mine, of_cluster = map(int, program.stdout.readline().split())
    try:
        if end == "killed":
            program.kill()
        program.wait()
        until = time.monotonic() + 30.0
        while end == "killed" and is_running(of_cluster):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert is_running(mine)
        assert is_running(of_cluster) == (end == "closed")
    finally:
        program.stdout.close()
        for number in filter(is_running, (mine, of_cluster)):
            os.kill(number, signal.SIGKILL)
