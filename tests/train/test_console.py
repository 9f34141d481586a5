import io

import pytest

from imitate.train.console import Console, duration


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.04, "0.0 s"), (59.0, "59.0 s"), (125.4, "2 min 05 s"), (7800, "2 h 10 min")],
)
def test_durations(seconds, words):
    assert duration(seconds) == words


def test_without_a_terminal_there_are_lines(tmp_path):
    stream, log = io.StringIO(), tmp_path / "log.txt"
    console = Console(stream, log=log)
    console.start_bar(10, 0)
    console.advance(5)
    console.say("hello")
    console.say("epoch 1")
    console.close_bar()
    assert stream.getvalue() == log.read_text() == "hello\nepoch 1\n"


def test_on_a_terminal_lines_stay_above_a_bar(tmp_path):
    stream, log = Terminal(), tmp_path / "log.txt"
    console = Console(stream, log=log)
    console.start_bar(10, 2)
    console.words = "epoch 1, loss 0.5"
    console.advance(5)
    console.say("epoch 1")
    console.say("hello")
    console.advance(10)  # too soon to be drawn
    console.close_bar()
    assert "5/10" in stream.getvalue()
    assert "10/10" in stream.getvalue()
    assert "loss 0.5" in stream.getvalue()
    assert "hello\n" in stream.getvalue()
    assert "epoch 1\n" in stream.getvalue()
    assert log.read_text() == "epoch 1\nhello\n"


def test_quiet_says_errors_only():
    stream = Terminal()
    console = Console(stream, quiet=True)
    console.start_bar(10, 0)
    console.say("hello")
    console.say("error", always=True)
    assert stream.getvalue() == "error\n"


def test_no_silence_is_long_where_there_is_no_bar(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("imitate.train.console.time.monotonic", lambda: now[0])
    stream = io.StringIO()
    console = Console(stream)
    console.pulse(lambda: "too soon")
    now[0] += 31
    console.pulse(lambda: "step 3")
    console.pulse(lambda: "too soon again")
    now[0] += 29
    console.say("epoch 1")
    now[0] += 29
    console.pulse(lambda: "the epoch was told 29 s ago")
    assert stream.getvalue() == "step 3\nepoch 1\n"


def test_a_terminal_has_its_bar_instead(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("imitate.train.console.time.monotonic", lambda: now[0])
    stream = Terminal()
    console = Console(stream)
    now[0] += 100
    console.pulse(lambda: "step 3")
    assert stream.getvalue() == ""
