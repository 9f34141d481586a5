"""Keys of a pseudo-terminal, one by one."""

import io
import sys

import pytest

from imitate.deploy.robot.terminal import EVENTS, TerminalKeys, show
from imitate.errors import UserError
from tests.refusals import refused


@pytest.fixture
def keys(terminal):
    made = TerminalKeys()
    yield made
    made.close()


def test_events_of_keys():
    assert EVENTS == {
        "\n": "success",
        "\r": "success",
        "x": "failure",
        "\x7f": "discard",
        "\b": "discard",
        "z": "redo",
        ".": "end",
        "\x1b": "quit",
    }


@pytest.mark.parametrize(
    ("pressed", "read"),
    [("ab", "ab"), ("é", "é"), ("\x1b", "\x1b"), ("\x1b[A", ""), ("a\x1b", "a\x1b"), ("x" * 1500, "x" * 1500)],
)  # fmt: skip
def test_all_keys_since_the_last_call(terminal, keys, pressed, read):
    assert keys.read() == ""
    terminal.press(pressed)
    assert keys.read() == read
    assert keys.read() == ""


@pytest.mark.parametrize(
    ("pressed", "waited"),
    [("ab", ["a", "b"]), ("éa", ["é", "a"]), ("\x1b[Aq", ["\x1b"]), ("a\x1b", ["a", "\x1b"])],
)
def test_the_next_key(terminal, keys, pressed, waited):
    terminal.press(pressed)
    assert [keys.wait() for _ in waited] == waited
    assert keys.read() == ""  # the rest of a special key is gone


def test_a_line_of_text(terminal, keys, capsys):
    terminal.press("\x7f ab\bc\x01d\x7f \n")
    assert keys.line("note: ") == "ac"
    assert capsys.readouterr().err == "note:  ab\b \bcd\b \b \n"
    terminal.press("x\r")
    assert keys.line("") == "x"
    show("end")
    assert capsys.readouterr().err == "x\nend"


def test_the_terminal_is_restored(terminal):
    import termios

    before = termios.tcgetattr(terminal.stdin)
    keys = TerminalKeys()
    during = termios.tcgetattr(terminal.stdin)
    assert before[3] & termios.ECHO and not during[3] & (termios.ECHO | termios.ICANON)
    keys.close()
    assert termios.tcgetattr(terminal.stdin) == before
    termios.tcsetattr(terminal.stdin, termios.TCSADRAIN, during)
    keys.close()  # a second time changes nothing
    assert termios.tcgetattr(terminal.stdin) == during


def test_what_is_no_terminal_is_refused(monkeypatch):
    for stdin in (io.StringIO("a"), None):
        monkeypatch.setattr(sys, "stdin", stdin)
        assert not TerminalKeys.present()
    for user, words in (((), "the keyboard device needs a terminal"), (("--x",), "--x needs a")):
        with refused(words, error=UserError):
            TerminalKeys(*user)


def test_a_terminal_that_was_closed(keys, monkeypatch):
    monkeypatch.setattr("os.read", lambda *_: b"")
    with refused("the terminal was closed", error=UserError):
        keys.wait()


def test_what_is_shown_is_written_at_once(monkeypatch):
    class Buffered(io.StringIO):
        flushed = 0

        def flush(self):
            self.flushed += 1

    monkeypatch.setattr(sys, "stderr", Buffered())
    show("a\b")
    assert (sys.stderr.getvalue(), sys.stderr.flushed) == ("a\b", 1)
