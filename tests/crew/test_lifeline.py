"""Connections that end with the process that is worked for."""

import subprocess
import sys
import threading
import time

import pytest

from imitate.crew.lifeline import Lifeline, hold

HOLDER = """
import sys
from imitate.crew.lifeline import Lifeline
print(Lifeline("127.0.0.1").address[1], flush=True)
sys.stdin.read()
"""


def test_the_end_of_a_killed_process_is_noticed():
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        ended = threading.Event()
        hold(("127.0.0.1", int(process.stdout.readline())), ended.set)
        assert not ended.is_set()
        process.kill()
        assert ended.wait(600.0)


def test_closing_waits_for_those_that_end_and_ends_the_others():
    for _ in range(10):  # each connects just before the end, when it may not have been accepted yet
        lifeline, ended = Lifeline("127.0.0.1"), threading.Event()
        hold(lifeline.address, ended.set)
        begun = time.monotonic()
        lifeline.close(patience_s=0.1)
        assert ended.wait(600.0)
        assert time.monotonic() - begun >= 0.1
        with pytest.raises(OSError):
            hold(lifeline.address, ended.set)
        lifeline.close()
