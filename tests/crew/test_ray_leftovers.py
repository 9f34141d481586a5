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
    return subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"]).pid

ray_leftovers.PATIENCE_S = 0.5
before = child()
with ray_leftovers.ended_with_this_process() as has_started:
    while_it_starts = child()
    if sys.argv[1] == "starting":
        time.sleep(1.0)
    else:
        has_started()
        time.sleep(1.0)
    later = child()
    print(before, while_it_starts, later, flush=True)
    time.sleep(0 if sys.argv[1] == "closed" else 1000)
time.sleep(1.0)
"""


@pytest.mark.parametrize(
    ("end", "ended"),
    [
        ("killed", [False, True, False]),
        ("starting", [False, True, True]),
        ("closed", [False, False, False]),
    ],
)
def test_what_a_program_starts_meanwhile_ends_with_it(end, ended):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, end],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    children = list(map(int, program.stdout.readline().split()))
    try:
        if end != "closed":
            time.sleep(0.5)
            program.kill()
        program.wait()
        while [not is_running(child) for child in children] != ended:
            time.sleep(0.05)
        time.sleep(1.0)
        assert [not is_running(child) for child in children] == ended
    finally:
        program.stdout.close()
        for number in filter(is_running, children):
            os.kill(number, signal.SIGKILL)
