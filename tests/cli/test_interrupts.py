"""Ctrl-C, SIGTERM and a full disk, whenever they come: the robot is at rest, and what was recorded is whole."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from imitate.cli.main import INTERRUPTED, QUIT, TERMINATED, app
from imitate.cli.robot.robots import released
from imitate.data import DatasetFile, finish_partial
from imitate.system.processes import handled
from tests.deploy import logged_robot
from tests.deploy.logged_robot import logged, moves
from tests.tiny import tiny_checkpoint

ROOT = Path(__file__).parents[2]
ROBOT = "tests.deploy.logged_robot:LoggedRobot"
DEVICE = ("--teleop", "tests.deploy.logged_robot:Steady", "--teleop-arg", "every=3")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("policy") / "policy.pth", obs={"flat": 3})


def assert_whole(path):
    """The recording is readable: the finished file, or what an interrupted writer left of it."""
    partial = path.with_name(path.name + ".partial")
    if partial.exists():
        finish_partial(path)
    if not path.exists():
        return 0
    with DatasetFile(path) as file:
        for demo in file.demos():
            assert file.length(demo) == 3
            assert np.isfinite(file.read(demo, "actions")).all()
        return len(file.demos())


def interrupted(words, call):
    """Run a command of which Ctrl-C is pressed in one call of the robot: the exit code and the robot's calls."""
    logged_robot.made.clear()
    more = ["--robot", ROBOT, "--robot-arg", f"interrupt_at={call}", "--rate-hz", "200"]
    done = CliRunner().invoke(app, [*map(str, words), *more])
    (robot,) = logged_robot.made
    return done, robot.calls


@pytest.mark.slow("a command for each call of the robot")
@pytest.mark.parametrize("verb", ["record", "run", "replay"])
def test_ctrl_c_in_each_call_of_the_robot_stops_it(verb, checkpoint, tmp_path, virtual_time):
    """Two episodes, once without an interrupt, and then with one in each call that was made."""
    done, calls = interrupted(("record", tmp_path / "demo.hdf5", *DEVICE, "-n", 2), 0)
    assert done.exit_code == 0, done.output

    def words(call):
        if verb == "record":
            return ("record", tmp_path / f"{call}.hdf5", *DEVICE, "-n", 2)
        if verb == "run":
            return ("run", checkpoint, "--steps", 2, "-n", 2, "--record", tmp_path / f"{call}.hdf5")
        return ("replay", tmp_path / "demo.hdf5", "--any-rate")

    done, calls = interrupted(words(0), 0)
    assert done.exit_code == 0, done.output
    assert calls.count("send") >= 2
    kept = set()
    for call in range(1, len(calls) + 1):
        done, seen = interrupted(words(call), call)
        where = f"Ctrl-C in call {call} of {len(calls)} ({calls[call - 1]}): {seen}"
        assert done.exit_code == INTERRUPTED, where + done.output
        assert seen[:call] == calls[:call], where
        assert set(moves(seen[call:])) == (set() if seen[call - 1] == "close" else {"stop"}), where
        assert moves(seen)[-1] == "stop", where
        assert seen[-1] == "close", where
        if verb == "record":
            kept.add(assert_whole(tmp_path / f"{call}.hdf5"))
    assert verb != "record" or kept == {0, 1, 2}


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)]
)
def test_a_signal_that_python_drops_ends_the_step(number, code, tmp_path, virtual_time):
    device = ("--teleop", "tests.deploy.logged_robot:Dropping")
    device += ("--teleop-arg", f"number={int(number)}")
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    done, calls = interrupted(("record", tmp_path / "a.hdf5", *device, "-n", 50), 0)
    assert done.exit_code == code
    assert calls.count("send") == 5
    assert moves(calls)[-1] == "stop"
    assert assert_whole(tmp_path / "a.hdf5") == 1
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("where", ["made", "connect", "observe"])
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED), (signal.SIGQUIT, QUIT)],
)
def test_a_signal_that_the_driver_has_taken_stops_the_robot(
    number, code, where, checkpoint, virtual_time
):
    logged_robot.made.clear()
    # A shell lets commands in the background ignore the first and the last one.
    before = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    words = ["run", str(checkpoint), "--robot=tests.deploy.logged_robot:Taking", "--rate-hz=200"]
    options = (f"number={int(number)}", f"where={where}")
    with handled({number: before}):
        done = CliRunner().invoke(app, [*words, *(f"--robot-arg={option}" for option in options)])
        after = signal.getsignal(number)
    (robot,) = logged_robot.made
    assert done.exit_code == code, done.output
    assert robot.calls[-4:] == ["send", "stop", "stop", "close"]
    assert robot.calls.count("send") == 3
    assert after is before


def started(command, words, log, **rest):
    """A command in a process of its own."""
    robot = ("--robot", ROBOT, "--robot-arg", f"log={log}", "--robot-arg", "in_step=true")
    return subprocess.Popen(
        [*map(str, (*command, *words, *robot))],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **rest,
    )


def moving(process, log):
    """Wait until the robot moves."""
    while "send" not in (log.read_text() if log.exists() else ""):
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_time_stops_the_robot(name, tmp_path):
    chance = random.Random(int(name))
    wanted = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}[name]
    for number in range(5):
        log, path = tmp_path / f"{number}.log", tmp_path / f"{number}.hdf5"
        words = ("record", path, *DEVICE, "-n", 10_000, "--rate-hz", 50)
        process = started((sys.executable, "-m", "imitate"), words, log)
        moving(process, log)
        time.sleep(chance.uniform(0.0, 0.5))
        process.send_signal(name)
        _, errors = process.communicate(timeout=600)
        # Where Python drops the exception it prints one, and the next control step ends the session.
        assert errors.count("Traceback") == errors.count("Exception ignored in"), errors
        calls = logged(log)
        assert [call for _, call in calls][-2:] == ["stop", "close"]
        assert_whole(path)
        assert process.returncode == wanted, errors
        assert "interrupted" in errors


@pytest.mark.parametrize("error", [RuntimeError("HDF5 cannot flush"), KeyboardInterrupt()])
def test_what_a_library_makes_of_a_signal_is_that_signal(error):
    with pytest.raises(KeyboardInterrupt, match="by SIGTERM"), released(logged_robot.LoggedRobot()):
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise error from None


@pytest.mark.parametrize("verb", ["record", "run"])
def test_a_full_disk_stops_the_session_and_keeps_what_was_recorded(
    verb, checkpoint, preloaded_commands, tmp_path
):
    """A file may not grow beyond 100 kB, room for two episodes of three images of 16 kB."""
    path, log = tmp_path / "demos.hdf5", tmp_path / "calls.log"

    def small_disk():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))

    common = ("--robot-arg", "size=72", "--rate-hz", 50)
    words = {
        "record": ("record", path, *DEVICE, "-n", 20, "--raw-images", *common),
        "run": ("run", checkpoint, "--steps", 3, "-n", 20, "--record", path, *common),
    }[verb]
    command = (preloaded_commands / "imitate",)
    process = started(command, words, log, preexec_fn=small_disk)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 2, errors
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, errors
    assert "demos.hdf5: cannot be written" in lines[0]
    assert "make room on the disk" in lines[0]
    assert "Traceback" not in errors
    calls = logged(log)
    last = max(k for k, (_, call) in enumerate(calls) if call in ("send", "hold", "reset"))
    after = [call for _, call in calls[last + 1 :] if call in ("send", "hold", "reset", "stop")]
    assert after
    assert set(after) == {"stop"}
    if verb == "run":
        return
    assert not path.exists()
    again = started(
        command, (*words[: words.index("-n")], "-n", 5, "--raw-images", "--append", *common), log
    )
    _, errors = again.communicate(timeout=600)
    assert again.returncode == 0, errors
    with h5py.File(path) as file:
        assert sorted(file["data"]) == [f"demo_{k}" for k in range(5)]
        assert all(file[f"data/demo_{k}/obs/camera"].shape == (3, 72, 72, 3) for k in range(5))
