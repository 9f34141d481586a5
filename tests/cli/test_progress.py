import io
import threading

from imitate.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Log(io.StringIO):
    """A file that says when a line was written."""

    def __init__(self):
        super().__init__()
        self.written = threading.Event()

    def flush(self):
        super().flush()
        self.written.set()


def test_a_line_now_and_then_where_there_is_no_terminal():
    log = Log()
    with Progress(50, "episode", "eval", stream=log, every_s=0.01) as progress:
        progress.advance(words="1 succeed")
        log.written.clear()
        assert log.written.wait(20.0)
    assert "eval: 1/50 episodes, 1 succeed, about " in log.getvalue()
    assert log.getvalue().endswith(" left\n")


def test_nothing_is_said_when_quiet_or_soon_over():
    log = Log()
    with Progress(50, "episode", "eval", stream=log, quiet=True, every_s=0.001) as progress:
        progress.advance()
        assert not log.written.wait(0.05)
    with Progress(50, "episode", "eval", stream=log) as progress:
        progress.advance()
    assert log.getvalue() == ""


def test_a_bar_on_a_terminal():
    terminal = Terminal()
    with Progress(None, "step", "render", stream=terminal) as progress:
        progress.reach(0, total=8)
        progress.reach(8, words="done")
    assert "8/8" in terminal.getvalue() and "done" in terminal.getvalue()


def test_without_a_total_the_time_so_far():
    assert Progress(None, "step", "render", quiet=True).line().startswith("render: 0 steps, for ")
