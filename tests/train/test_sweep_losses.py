"""Trainings of a sweep that hang, die or lose their worker."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from imitate.train import sweep_work
from imitate.train.sweep import Resources, Sweep
from tests.train.test_sweep import processes_with, wait_until, write_config

BEGINS = """
import os, pathlib, signal, sys, time
from imitate.processes import end_with_stdin
end_with_stdin(1.0)
place = pathlib.Path({0!r})
is_first = "seed=1" in "".join(sys.argv)
count = len(list(place.glob("try-*")))
(place / f"try-{{os.getpid()}}-{{is_first}}").touch()
"""
HANGS = (
    BEGINS
    + """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while is_first: time.sleep(60)
"""
)
LOSES_ITS_WORKER = (
    BEGINS
    + """
if is_first:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
"""
)


@pytest.fixture
def swept(tmp_path, monkeypatch):
    """Runs a sweep over two seeds with a program in place of the training."""

    def run(program, **resources):
        monkeypatch.setattr(sweep_work, "PROGRAM", program.format(str(tmp_path)))
        sweep = Sweep(write_config(tmp_path))
        return sweep.run(resources=Resources(**resources))

    return run


def tries(tmp_path):
    return sorted(path.name.rpartition("-")[2] for path in tmp_path.glob("try-*"))


def test_a_training_that_hangs_is_tried_again_then_named_and_the_next_one_runs(swept, tmp_path):
    result = swept(HANGS, workers=1, hang_s=8.0)
    assert tries(tmp_path) == ["False", "True", "True"]
    first, second = result.runs
    assert "reported nothing for 8 s, in 2 tries" in first.status and "output.txt" in first.status
    assert second.status == "waiting"  # the program wrote no run, but it came to its end
    assert result.exit_code == 1
    wait_until(lambda: not processes_with(str(tmp_path)))


def test_a_run_that_loses_its_worker_twice_is_named_and_the_others_go_on(swept, tmp_path):
    result = swept(LOSES_ITS_WORKER, workers=2)
    assert tries(tmp_path) == ["False", "True", "True"]
    assert "its process died (exit code -9), in 2 tries" in result.runs[0].status
    assert not result.runs[1].status.startswith("failed")
    wait_until(lambda: not processes_with(str(tmp_path)))


@pytest.mark.slow("trainings import torch, as users' do")
def test_a_training_whose_worker_is_killed_is_resumed(tmp_path):
    """The same metrics as undisturbed: nothing twice, nothing left out."""
    config = write_config(tmp_path)
    options = ["train.num_epochs=400", "experiment.save.every_n_seconds=0.05"]
    killed = []

    def kill(run):
        if run.status == "running":
            killed.append(run.name)

    sweep = Sweep(config, ["train.seed=[1]"], overrides=options)
    worker = _KillsWorkerOf(sweep.folder)
    try:
        result = sweep.run(on_change=kill)
    finally:
        worker.join()
    (run,) = result.runs
    assert worker.found, "no worker was killed"
    assert run.status == "finished"
    lines = next(sweep.folder.glob("*/*/metrics.jsonl")).read_text().splitlines()
    assert len(lines) == 400
    assert "resumed at epoch" in next(sweep.folder.glob("*/*/log.txt")).read_text()


class _KillsWorkerOf:
    """Thread that kills the parent of the first training of a sweep that has a checkpoint."""

    def __init__(self, folder):
        self.found = []
        self._folder = folder
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self):
        self._thread.join(timeout=60)

    def _run(self):
        end = time.monotonic() + 200
        while time.monotonic() < end and not self.found:
            time.sleep(0.02)
            if any(self._folder.glob("*/*/checkpoints/last.pth")):
                self._kill()

    def _kill(self):
        words = str(self._folder / "seed=1")
        for path in processes_with(words):
            stat = Path(path.parent, "stat").read_text().rpartition(")")[2].split()
            parent = int(stat[1])
            if parent not in (os.getpid(), 1) and str(parent) not in map(str, self._pids(words)):
                os.kill(parent, signal.SIGKILL)
                self.found.append(parent)
                return

    @staticmethod
    def _pids(words):
        return [path.parent.name for path in processes_with(words)]


ENDS_WITH_STDIN = """
import os, signal, subprocess, sys, time
from imitate.processes import end_with_stdin
end_with_stdin({patience}, {scratch!r})
signal.signal(signal.SIGTERM, signal.SIG_IGN if {patience} == 0.5 else signal.SIG_DFL)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
print(child.pid, flush=True)
while True: time.sleep(100)
"""


@pytest.mark.parametrize("patience", [0.0, 0.5, 60.0])
def test_a_session_ends_when_stdin_is_closed_and_its_folder_is_removed(tmp_path, patience):
    """At once, after the patience with a process that does not heed SIGTERM, or as soon as it has ended."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "file").touch()
    program = ENDS_WITH_STDIN.format(patience=patience, scratch=str(scratch))
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    child = int(process.stdout.readline())
    assert process.poll() is None and scratch.exists()
    process.stdin.close()
    assert process.wait(timeout=50) < 0
    wait_until(lambda: not scratch.exists())
    wait_until(lambda: _state(child) in ("Z", None))
    process.stdout.close()


def _state(pid):
    """State of a process: Z where it is dead and nobody has asked for its exit code, None where it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return None
