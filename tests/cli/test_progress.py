"""Progress of commands: a bar on a terminal, lines elsewhere, nothing with ``--quiet``."""

import io
import threading
from functools import partial

import pytest

from imitate.cli import collect
from imitate.cli.dataset import dataset, render
from imitate.cli.progress import Progress
from imitate.collect.collect import CollectionReport


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
        assert log.written.wait(600)
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


@pytest.mark.parametrize(
    ("line", "module", "work", "report", "words"),
    [
        ("collect --env Lift --out a", collect, "imitate.cli.collect.collect",
         lambda on_demo, **_: on_demo(CollectionReport("a")), "collect Lift: 0/100 demos"),
        ("dataset render a --out b", render, "imitate.cli.dataset.render.draw",
         lambda on_start, **_: on_start(20), "render: 0/20 steps"),
        ("dataset playback a --video a.mp4", dataset, "imitate.cli.dataset.dataset.play", None, "playback: 0 demos"),
        ("dataset shard a --out b", dataset, "imitate.data.edit.shard.shard_files", None, "shard: 0 demos"),
    ],
    ids=["collect", "render", "playback", "shard"],
)  # fmt: skip
def test_quiet_shows_no_progress(call, monkeypatch, line, module, work, report, words):
    """Work that is interrupted once a line could have been written."""
    shown = threading.Event()

    class Told(Progress):
        def line(self):
            shown.set()
            return super().line()

    def interrupted(*_, **callbacks):
        if report is not None:
            report(**callbacks)
        shown.clear()
        shown.wait(0.1 if quiet else 600)
        raise KeyboardInterrupt

    monkeypatch.setattr(work, interrupted)
    monkeypatch.setattr(module, "Progress", partial(Told, every_s=0.01))
    quiet = False
    assert words in call(line, code=130).stderr
    quiet = True
    assert words not in call(f"{line} --quiet", code=130).stderr
