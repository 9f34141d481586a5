"""Single keys and lines of a pseudo-terminal."""

import os
import pty
import sys

import pytest

from imitate.deploy.terminal import TerminalKeys


@pytest.fixture
def keys(monkeypatch):
    """A terminal that is open, and the end of it at which keys are pressed."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        terminal = TerminalKeys("a test")
        yield terminal, lambda text: os.write(master, text.encode())
        terminal.close()
    os.close(master)


def test_keys_come_one_by_one(keys):
    terminal, press = keys
    press("sé7")
    assert [terminal.wait() for _ in range(3)] == ["s", "é", "7"]


def test_a_line_is_ended_by_enter_and_mended_by_backspace(keys, capsys):
    terminal, press = keys
    press("grip\x7fp slipt\x7f\x7f\x7f\x7f\x7fmissed \nx")
    assert terminal.line("note: ") == "grip missed"
    assert terminal.wait() == "x"
    assert capsys.readouterr().err.startswith("note: grip\b \bp")


def test_an_arrow_is_one_key(keys):
    terminal, press = keys
    press("\x1b[A")
    assert terminal.wait() == "\x1b"
    press("s")
    assert terminal.wait() == "s"
