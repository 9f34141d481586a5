"""Keys of a real pseudo-terminal move a robot, end episodes, and give the terminal back as it was."""

import os
import pty
import subprocess
import sys
import termios
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from imitate import clock
from imitate.deploy.keyboard import Keyboard
from imitate.errors import UserError
from tests.deploy.fake_robot import FakeRobot


@pytest.fixture
def keyboard(terminal, virtual_time):
    made = []

    def make(robot=None, **options):
        made.append(Keyboard(**options))
        made[-1].connect(robot or FakeRobot(pose=np.zeros(2)))
        return made[-1]

    yield make
    for device in made:
        device.close()


def test_keys_move_the_axes(terminal, keyboard):
    device = keyboard(gripper=False, scale=0.5)
    assert device.guide(None).action is None
    terminal.press("w")
    np.testing.assert_allclose(device.guide(None).action, [0.5, 0.0])
    terminal.press("d")
    np.testing.assert_allclose(device.guide(None).action, [0.5, -0.5])


def test_a_key_acts_for_a_moment(terminal, keyboard):
    device = keyboard(gripper=False, press_s=0.05)
    terminal.press("s")
    assert device.guide(None).action[0] < 0
    clock.sleep(0.08)
    assert device.guide(None).action is None


def test_space_closes_and_opens_the_gripper(terminal, keyboard):
    device = keyboard()
    terminal.press(" ")
    np.testing.assert_allclose(device.guide(None).action, [0.0, 1.0])
    terminal.press("w")
    np.testing.assert_allclose(device.guide(None).action, [0.3, 1.0])
    terminal.press(" ")
    assert device.guide(None).action[-1] == -1.0


def test_absolute_actions_begin_at_the_pose(terminal, keyboard):
    robot = FakeRobot(pose=np.array([0.2, 0.4]))
    device = keyboard(robot, gripper=False, mode="absolute", scale=1.0)
    device.guide(None)
    clock.sleep(0.05)
    terminal.press("w")
    action = device.guide(robot.observe()).action
    np.testing.assert_allclose(action, [0.2 + 2.0 * 0.05, 0.4])


@pytest.mark.parametrize(
    ("key", "event"),
    list(
        zip("\nx\x7fz.\x1b", ["success", "failure", "discard", "redo", "end", "quit"], strict=True)
    ),
)
def test_keys_end_episodes(terminal, keyboard, key, event):
    device = keyboard()
    terminal.press(key)
    assert device.guide(None).events == {event}
    assert device.guide(None).events == frozenset()


def test_an_arrow_is_no_escape(terminal, keyboard):
    device = keyboard()
    terminal.press("\x1b[A")
    assert device.guide(None).events == frozenset()


def test_the_terminal_is_given_back(terminal):
    before = termios.tcgetattr(terminal.stdin)
    device = Keyboard()
    device.connect(FakeRobot(pose=np.zeros(2)))
    assert termios.tcgetattr(terminal.stdin) != before
    device.close()
    assert termios.tcgetattr(terminal.stdin) == before
    device.close()


def test_without_a_terminal_it_is_one_line(monkeypatch, tmp_path):
    with (tmp_path / "empty").open("w+") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with pytest.raises(UserError, match="needs a terminal"):
            Keyboard().connect(FakeRobot(pose=np.zeros(2)))


@pytest.mark.parametrize("options", [{"scale": 0.0}, {"mode": "sideways"}])
def test_settings_that_make_no_sense_are_refused(options):
    with pytest.raises(UserError, match="wanted"):
        Keyboard(**options)


def recording(path, log, *more):
    """``imitate record`` on a terminal, of a robot that writes a log: its process and the terminal's other end."""
    master, slave = pty.openpty()
    words = (
        *("record", path, "--robot", "tests.deploy.logged_robot:LoggedRobot", "--rate-hz", 20),
        *("--robot-arg", f"log={log}", "--robot-arg", "in_step=true", "--episodes", 4),
        *("--teleop", "keyboard", "--teleop-arg", "gripper=false", "--teleop-arg", "press_s=600"),
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "imitate", *map(str, words), *more],
        stdin=slave,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    os.close(slave)
    until(process, "Esc quit")
    return process, master


def until(process, words):
    """Wait until the process has printed some words."""
    text = b""
    while words.encode() not in text:
        text += (piece := os.read(process.stderr.fileno(), 1000))
        assert piece, text


def move(keys, key, log):
    """Press a key, and wait until the robot moves."""
    before = log.read_text().count("send")
    os.write(keys, key)
    while log.read_text().count("send") < before + 3:
        time.sleep(0.01)


def test_a_session_by_keys_killed_in_an_episode_and_resumed(tmp_path):
    path, log = tmp_path / "demos.hdf5", tmp_path / "calls.log"
    process, keys = recording(path, log)
    for end, words in (("\n", "1 of 4"), ("x", "2 of 4"), ("\x7f", "2 of 4"), ("\n", "3 of 4")):
        move(keys, b"w", log)
        os.write(keys, end.encode())
        until(process, words)
    move(keys, b"w", log)
    process.kill()
    process.communicate()
    assert not path.exists()
    process, other = recording(path, log, "--append")
    move(other, b"s", log)
    os.write(other, b"\n")
    process.communicate()
    assert process.returncode == 0
    os.close(keys)
    os.close(other)
    with h5py.File(path) as file:
        demos = [file[f"data/demo_{k}"] for k in range(4)]
        assert [bool(demo.attrs["success"]) for demo in demos] == [True, False, True, True]
        assert len(file["data"]) == 4
        assert (demos[0]["actions"][:] > 0).all() and (demos[3]["actions"][:] < 0).all()
