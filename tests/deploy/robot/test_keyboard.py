"""Keys of a real pseudo-terminal move a robot; sessions by keys end and are resumed."""

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from imitate.deploy.robot.keyboard import Keyboard
from imitate.deploy.robot.terminal import TerminalKeys
from imitate.system import clock
from tests.deploy.fake_robot import FakeRobot


@pytest.fixture
def keyboard(terminal, virtual_time):
    made = []

    def make(**options):
        made.append(Keyboard(**options))
        made[-1].connect(FakeRobot(pose=np.zeros(2)))
        return made[-1]

    yield make
    for device in made:
        device.close()


def test_keys_move_the_axes(terminal, keyboard, capsys):
    device = keyboard(gripper=False, scale=0.5)
    keys = capsys.readouterr().err
    assert "space" in keys and keys.endswith("\n") and "Esc" in keys
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


@pytest.mark.parametrize(("press_s", "acts_s"), [(0.05, 0.5), (0.8, 0.8)])
def test_the_gripper_moves_for_a_moment_at_least(terminal, keyboard, press_s, acts_s):
    device = keyboard(press_s=press_s)
    terminal.press(" ")
    assert device.guide(None).action is not None
    clock.sleep(acts_s - 0.125)
    assert device.guide(None).action is not None
    clock.sleep(0.125)  # to its end, exactly
    assert device.guide(None).action is None


def test_a_key_acts_for_a_quarter_of_a_second_by_default(terminal, keyboard):
    device = keyboard()
    terminal.press("w")
    assert device.guide(None).action.tolist() == [0.3, -1.0]
    for pause_s, acts in ((0.24, True), (0.02, False)):
        clock.sleep(pause_s)
        assert (device.guide(None).action is not None) == acts
    terminal.press("w")
    device.guide(None)
    clock.sleep(0.25)  # to its end, exactly
    assert device.guide(None).action is None


def test_an_event_releases_the_keys_and_opens_the_gripper(terminal, keyboard):
    device = keyboard()
    terminal.press(" w")
    assert device.guide(None).action.tolist() == [0.3, 1.0]
    terminal.press("\nz")
    guidance = device.guide(None)
    assert (guidance.action, guidance.events) == (None, {"success", "redo"})
    clock.sleep(1.0)
    assert device.guide(None).action is None
    terminal.press("s")
    assert device.guide(None).action.tolist() == [-0.3, -1.0]


def test_a_take_over_keeps_the_policys_gripper_and_then_ones_own(terminal, keyboard):
    device = keyboard()
    device.follow([0.0, 1.0])
    terminal.press("w")
    assert device.guide(None).action.tolist() == [0.3, 1.0]
    device.follow([0.0, 0.4])  # one's own action, shortened by the limits
    assert device.guide(None).action.tolist() == [0.3, 1.0]
    clock.sleep(1.0)
    assert device.guide(None).action is None
    device.follow([0.0, -1.0])
    terminal.press("w")
    assert device.guide(None).action.tolist() == [0.3, -1.0]


def test_a_closed_keyboard_gives_nothing(terminal, keyboard):
    device = keyboard()
    device.close()
    device.close()
    guidance = device.guide(None)
    assert (guidance.action, guidance.events) == (None, frozenset())


def test_an_arrow_is_no_escape(terminal, keyboard):
    device = keyboard(gripper=False)
    for keys, moves in (("\x1b[A", False), ("w\x1b[A", True), ("\x1bOB\x1b[1;5C\x1b[3~d", True)):
        terminal.press(keys)
        guidance = device.guide(None)
        assert (guidance.events, guidance.action is not None) == (frozenset(), moves)
    for keys in ("\x1b", "\x1b\x1b", "w\x1b", "\x1bw", "\x1b[A\x1b"):  # Esc in a hurry, too
        terminal.press(keys)
        assert device.guide(None).events == {"quit"}


# ---- a terminal's keys and lines -----------------------------------------------------------------


@pytest.fixture
def keys(terminal):
    keys = TerminalKeys("a test")
    yield keys
    keys.close()


def test_keys_come_one_by_one_and_an_arrow_is_one(terminal, keys):
    terminal.press("sé7\x1b[A")
    assert [keys.wait() for _ in range(4)] == ["s", "é", "7", "\x1b"]
    terminal.press("s")
    assert keys.wait() == "s"


def test_a_line_is_ended_by_enter_and_mended_by_backspace(terminal, keys, capsys):
    terminal.press("grip\x7fp slipt\x7f\x7f\x7f\x7f\x7fmissed \nx")
    assert (keys.line("note: "), keys.wait()) == ("grip missed", "x")
    assert capsys.readouterr().err.startswith("note: grip\b \bp")


# ---- a session -----------------------------------------------------------------------------------


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
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
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


def move(process, keys, key, log):
    """Press a key, and wait until the robot moves."""
    before = log.read_text().count("send")
    os.write(keys, key)
    while log.read_text().count("send") < before + 3:
        assert process.poll() is None, "it has ended"
        time.sleep(0.01)


@pytest.mark.slow("two processes with a terminal, of which one is killed")
def test_a_session_by_keys_killed_in_an_episode_and_resumed(tmp_path):
    path, log = tmp_path / "demos.hdf5", tmp_path / "calls.log"
    process, keys = recording(path, log)
    for end, words in (("\n", "1 of 4"), ("x", "2 of 4"), ("\x7f", "2 of 4"), ("\n", "3 of 4")):
        move(process, keys, b"w", log)
        os.write(keys, end.encode())
        until(process, words)
    move(process, keys, b"w", log)
    process.kill()
    process.communicate()
    assert not path.exists()
    process, other = recording(path, log, "--append")
    move(process, other, b"s", log)
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
