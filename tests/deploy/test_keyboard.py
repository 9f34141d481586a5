"""Keys of a real pseudo-terminal move a robot, end episodes, and give the terminal back as it was."""

import os
import pty
import sys
import termios
import time

import h5py
import numpy as np
import pytest

from imitate.deploy.keyboard import Keyboard
from imitate.errors import UserError
from tests.deploy.fake_robot import FakeRobot


class Terminal:
    """A pseudo-terminal in the place of standard input."""

    def __init__(self, monkeypatch):
        self.master, slave = pty.openpty()
        self.stdin = os.fdopen(slave, "r")
        monkeypatch.setattr(sys, "stdin", self.stdin)

    def press(self, keys):
        os.write(self.master, keys.encode())
        time.sleep(0.02)


@pytest.fixture
def terminal(monkeypatch):
    terminal = Terminal(monkeypatch)
    yield terminal
    os.close(terminal.master)
    terminal.stdin.close()


@pytest.fixture
def keyboard(terminal):
    made = []

    def make(robot=None, **options):
        made.append(Keyboard(**options))
        made[-1].connect(robot or FakeRobot())
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
    time.sleep(0.08)
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
    time.sleep(0.05)
    terminal.press("w")
    action = device.guide(robot.observe()).action
    assert 0.2 < action[0] <= 0.2 + 2.0 * 0.2
    assert action[1] == 0.4


@pytest.mark.parametrize(
    ("key", "event"),
    [
        ("\n", "success"),
        ("x", "failure"),
        ("\x7f", "discard"),
        ("z", "redo"),
        (".", "end"),
        ("\x1b", "quit"),
    ],
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
    device.connect(FakeRobot())
    assert termios.tcgetattr(terminal.stdin) != before
    device.close()
    assert termios.tcgetattr(terminal.stdin) == before
    device.close()


def test_without_a_terminal_it_is_one_line(monkeypatch, tmp_path):
    with (tmp_path / "empty").open("w+") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with pytest.raises(UserError, match="needs a terminal"):
            Keyboard().connect(FakeRobot())


@pytest.mark.parametrize("options", [{"scale": 0.0}, {"mode": "sideways"}])
def test_settings_that_make_no_sense_are_refused(options):
    with pytest.raises(UserError, match="wanted"):
        Keyboard(**options)


def recording(path, *more):
    """``imitate record`` on a terminal: its process and the terminal's other end."""
    from pathlib import Path
    from subprocess import PIPE, Popen

    root = Path(__file__).parents[2]
    master, slave = pty.openpty()
    process = Popen(
        [
            sys.executable, "-m", "imitate", "record", str(path), "--robot", "sim", "--env", "Pendulum-v1",
            "--rate-hz", "20", "--teleop", "keyboard", "--teleop-arg", "gripper=false", "--episodes", "4", *more,
        ],
        stdin=slave,
        stdout=PIPE,
        stderr=PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    os.close(slave)
    os.set_blocking(process.stderr.fileno(), False)
    return process, master


def until(process, words, seconds=60):
    """Wait until the process has printed some words."""
    text, deadline = b"", time.monotonic() + seconds
    while words.encode() not in text:
        text += process.stderr.read() or b""
        assert process.poll() is None or words.encode() in text, text
        assert time.monotonic() < deadline, text
        time.sleep(0.01)


def test_a_session_by_keys_killed_in_an_episode_and_resumed(tmp_path):
    path = tmp_path / "demos.hdf5"
    process, keys = recording(path)
    until(process, "Esc quit")
    for end, words in (("\n", "1 of 4"), ("x", "2 of 4"), ("\x7f", "2 of 4"), ("\n", "3 of 4")):
        os.write(keys, b"wwww")
        time.sleep(0.3)
        os.write(keys, end.encode())
        until(process, words)
    os.write(keys, b"www")
    time.sleep(0.3)
    process.kill()
    process.communicate()
    assert not path.exists()
    process, other = recording(path, "--append")
    until(process, "Esc quit")
    os.write(other, b"ssss")
    time.sleep(0.3)
    os.write(other, b"\n")
    process.communicate(timeout=60)
    assert process.returncode == 0
    os.close(keys)
    os.close(other)
    with h5py.File(path) as file:
        verdicts = [bool(file[f"data/demo_{k}"].attrs["success"]) for k in range(4)]
        assert verdicts == [True, False, True, True]
        assert len(file["data"]) == 4
        assert (file["data/demo_0/actions"][:] > 0).all()
        assert (file["data/demo_3/actions"][:] < 0).all()
