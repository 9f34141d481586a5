"""No worker outlives its parent, whatever it does and however the parent ends."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("spawned_workers")

PARENT = """
import multiprocessing, os, sys, time
from imitate.crew import Crew
from tests.crew.test_ends import worker

def main(what, then):
    if then == "fork":
        multiprocessing.set_start_method("fork")
    crew = Crew(worker)
    results = crew.as_completed([what])
    if what == "idle":
        next(results)
    else:
        import threading
        threading.Thread(target=lambda: list(results), daemon=True).start()
    while not multiprocessing.active_children():
        time.sleep(0.01)
    (child,) = multiprocessing.active_children()
    time.sleep(3.0 if what != "idle" else 0.0)
    if then == "sibling" and os.fork() == 0:  # holds all pipes of its parent
        time.sleep(1000)
    print(child.pid, flush=True)
    if then != "leave":
        time.sleep(1000)

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


def worker(reports):
    """Does what an item names."""
    return lambda what: {"idle": str, "sleeping": sleeping, "busy": busy}[what]()


def sleeping():
    time.sleep(1000)


def busy():
    """Hangs in one call that never lets another thread of Python run."""
    sum(range(10**15))


@pytest.fixture
def parent(tmp_path):
    """Start a parent in a session of its own; return it and the number of its worker."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    opened = []

    def start(what, then="wait"):
        process = subprocess.Popen(
            [sys.executable, script, what, then],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        opened.append(process)
        return process, int(process.stdout.readline())

    yield start
    for process in opened:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("what", ["idle", "sleeping", "busy"])
def test_a_worker_ends_with_a_parent_that_is_killed(parent, what):
    process, worker = parent(what)
    assert is_running(worker)
    process.kill()
    ends(worker)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_ends_with_a_parent_that_is_told_to_end(parent, number):
    process, worker = parent("sleeping")
    process.send_signal(number)
    ends(worker)
    assert process.wait(timeout=600) != 0


def test_a_worker_ends_although_a_forked_process_holds_its_pipes(parent):
    process, worker = parent("sleeping", "sibling")
    process.kill()
    ends(worker)


def test_a_parent_that_forgets_its_crew_can_end(parent):
    process, worker = parent("sleeping", "leave")
    assert process.wait(timeout=600) == 0
    ends(worker)


def test_workers_are_spawned_whatever_the_start_method_is(parent):
    process, worker = parent("idle", "fork")
    command = Path(f"/proc/{worker}/cmdline").read_text()
    assert "spawn_main" in command
    process.kill()
    ends(worker)


def ends(pid):
    while is_running(pid):
        time.sleep(0.05)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
