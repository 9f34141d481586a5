"""Judges of trials: keys of a person, and the robot's own measurement."""

import types
from pathlib import Path

import pytest

from imitate.deploy.comparison import judges
from imitate.deploy.comparison.judges import QUIT, PersonJudge, RobotJudge, Start, Verdict
from imitate.errors import UserError
from tests.refusals import refused


class Keys:
    """A terminal whose keys and lines come from lists."""

    def __init__(self, user):
        assert user == "--judge person"
        self.keys, self.lines, self.prompts, self.pressed, self.closed = [], [], [], "", False

    def wait(self):
        return self.keys.pop(0)

    def line(self, prompt):
        self.prompts.append(prompt.strip())
        return self.lines.pop(0)

    def read(self):
        pressed, self.pressed = self.pressed, ""
        return pressed

    def close(self):
        self.closed = True


@pytest.fixture
def person(monkeypatch):
    made, shown = [], []
    monkeypatch.setattr(judges, "TerminalKeys", lambda user: made.append(Keys(user)) or made[-1])
    monkeypatch.setattr(judges, "show", shown.append)
    judge = PersonJudge()
    assert judge.blind and not judge.until_success
    return judge, made[0], shown


def start(is_set=False, before=(), paths=()):
    drawn = []

    def overlay():
        drawn.append(True)
        return paths

    return Start("pair 1", is_set, before, overlay), drawn


@pytest.mark.parametrize(
    ("is_set", "before", "words"),
    [
        (True, (), "has prepared the scene|Enter starts, q quits: "),
        (False, (), "prepare the scene for the start|Enter starts, q quits: "),
        (
            False,
            (Path("a.png"),),
            "as it was|first start: a.png|o draws the overlay again, q quits",
        ),
    ],
)
def test_the_scene_is_prepared(person, is_set, before, words):
    judge, keys, shown = person
    keys.keys = ["x", "o", "\n"]
    begin, drawn = start(is_set, before, (Path("b.png"),))
    assert judge.ready(begin) is True
    assert len(drawn) == 2  # at first and at the key
    text = "".join(shown)
    assert text.startswith("pair 1\n") and text.count("both starts: b.png") == 2
    assert "while running: s success" in text
    for part in words.split("|"):
        assert part in text
    keys.keys = ["\r"]
    assert judge.ready(begin) is True
    shown.clear()
    keys.keys = ["q"]
    assert judge.ready(begin) is False and "while running" not in "".join(shown)


@pytest.mark.parametrize(
    ("ended_by", "stopped", "keys", "lines", "verdict"),
    [
        (QUIT, "", "", [], None),
        ("success", "", "", [], Verdict(True)),
        ("failure", "late", "", [], Verdict(False)),
        ("redo", "", "", ["", "it fell"], Verdict(False, redo="it fell")),
        ("steps", "", "xs", [], Verdict(True)),
        ("steps", "", "f", [], Verdict(False)),
        ("steps", "", "9n7f", ["slipped"], Verdict(False, 7, "slipped")),
        ("steps", "", "r", ["it fell"], Verdict(False, redo="it fell")),
        ("steps", "", "q", [], None),
        ("stopped", "late", "sf", [], Verdict(False)),  # a stopped trial is not a success
        ("stopped", "late", "4r", ["late"], Verdict(False, 4, redo="late")),
        ("steps", "", "²0s", [], Verdict(True, 0)),  # a digit, but not one of ASCII
    ],
)
def test_verdicts_by_keys(person, ended_by, stopped, keys, lines, verdict):
    judge, terminal, shown = person
    terminal.keys, terminal.lines = list(keys), lines
    assert judge.judge(ended_by, stopped) == verdict
    assert terminal.keys == [] and terminal.lines == []
    text = "".join(shown)
    assert ("the robot was stopped: late" in text) == (ended_by == "stopped")
    assert ("f failure, r redo" in text) == (ended_by in ("steps", "stopped"))
    assert ("s success, f failure" in text) == (ended_by == "steps")
    assert ("a redo needs a reason" in text) == ("" in lines or ended_by == "redo")
    if ended_by in ("steps", "stopped"):
        assert shown[-1] == "\n"
        digits = [key for key in keys if key in "0479"]
        assert [part for part in shown if "[" in part] == [f"[progress {d} of 9] " for d in digits]


@pytest.mark.parametrize(
    ("pressed", "events", "progress"),
    [
        ("", set(), None),
        ("s", {"success"}, None),
        ("f", {"failure"}, None),
        ("x3r", {"redo"}, 3),
        (".", {"end"}, None),
        ("²q", {QUIT}, None),
        ("sf", {"success"}, None),  # the first counts
        ("27", set(), 7),
    ],
)
def test_keys_during_a_trial(person, pressed, events, progress):
    judge, terminal, _ = person
    terminal.pressed = pressed
    found = judge.keys.guide(None)
    assert (found.action, found.events) == (None, frozenset(events))
    assert judge.judge("success", "") == Verdict(True, progress)
    terminal.keys = ["\n"]
    judge.ready(start()[0])
    assert judge.judge("success", "") == Verdict(True)  # the progress was of the trial before
    judge.close()
    assert terminal.closed


def test_a_robot_judges_by_its_own_measurement():
    robot = types.SimpleNamespace(success=lambda: True)
    judge = RobotJudge(robot)
    assert (judge.blind, judge.keys, judge.until_success) == (False, None, True)
    assert judge.judge("steps", "") == Verdict(True)
    assert judge.judge("steps", "late") == Verdict(False)
    robot.success = lambda: False
    assert judge.judge("steps", "") == Verdict(False)
    assert judge.ready(start(is_set=True)[0]) is True
    with refused("use --judge person", error=UserError):
        judge.ready(start()[0])
    robot.success = lambda: None
    with refused("does not measure success; use --judge person", error=UserError):
        RobotJudge(robot)


RUNNING = "  while running: s success, f failure, 0-9 progress, r redo, . end, then judge, q quit\n"


@pytest.mark.parametrize(("key", "more"), [("q", ""), ("\n", RUNNING)])
def test_the_whole_text_before_a_trial(person, key, more):
    judge, terminal, shown = person
    terminal.keys = [key]
    judge.ready(start(before=(Path("a.png"), Path("c.png")), paths=(Path("b.png"),))[0])
    assert "".join(shown) == (
        "pair 1\n  prepare the scene as it was\n  first start: a.png\n  first start: c.png\n"
        "  both starts: b.png\n  Enter starts, o draws the overlay again, q quits: \n" + more
    )


def test_the_whole_text_after_a_trial(person):
    judge, terminal, shown = person
    terminal.keys, terminal.lines = list("3nr"), ["slow", "", "it fell"]
    assert judge.judge("steps", "") == Verdict(False, 3, "slow", "it fell")
    assert "".join(shown) == (
        "  s success, f failure, r redo; before it, if you like: 0-9 progress, n note; q quit: "
        "[progress 3 of 9]   a redo needs a reason\n\n"
    )
    assert terminal.prompts == ["note:", "reason for the redo:", "reason for the redo:"]
    shown.clear()
    terminal.keys = ["q"]
    assert judge.judge("stopped", "late") is None
    assert "".join(shown) == (
        "  the robot was stopped: late\n"
        "  f failure, r redo; before it, if you like: 0-9 progress, n note; q quit: \n"
    )
