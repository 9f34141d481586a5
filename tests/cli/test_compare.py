"""``imitate compare``: keys of a real terminal, kill -9, resumption, and robots that judge by themselves."""

import json
import os
import pty
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from tests.deploy.comparison_world import constant_checkpoint

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
COIN = ("--robot", "tests.deploy.comparison_world:Coin")


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policies")
    return [
        constant_checkpoint(folder / name, action, control_freq=20.0)
        for name, action in (("good.pth", 0.8), ("bad.pth", -0.6))
    ]


@pytest.fixture
def session(preloaded_commands, policies, tmp_path):
    """Begin a `Session` in the test's folder."""
    return partial(Session, preloaded_commands / "imitate", policies, tmp_path)


@pytest.fixture
def compare(call):
    """Call the command in this process."""
    return partial(call, "compare")


class Session:
    """``imitate compare`` on a pseudo-terminal, judged by a person."""

    def __init__(self, command, policies, cwd, *words):
        self.keys, slave = pty.openpty()
        self.process = subprocess.Popen(
            [
                *(str(command), "compare", *map(str, policies), *COIN),
                *("--robot-arg", "tells=false", "--robot-arg", "puts_up=false", "--steps", "100", *words),
            ],
            cwd=cwd, env=ENV, stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        os.close(slave)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.text, self._at = "", 0

    def until(self, words):
        """Wait until some words have been printed since the last call."""
        while words not in self.text[self._at :]:
            self.text += (self.process.stdout.read() or b"").decode()
            seen = words in self.text[self._at :]
            assert seen or self.process.poll() is None, self.text
            time.sleep(0.01)
        self._at = self.text.index(words, self._at) + len(words)

    def press(self, keys):
        os.write(self.keys, keys.encode())

    def trial(self, *keys):
        """Start a trial, and press keys while it runs."""
        self.until("Enter starts")
        self.press("\n")
        self.until("running:")
        for key in keys:
            time.sleep(0.05)
            self.press(key)

    def end(self):
        code = self.process.wait(600)
        self.text += (self.process.stdout.read() or b"").decode()
        os.close(self.keys)
        return code


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_person_judges_by_keys_is_killed_and_resumes(compare, session, tmp_path):
    path = tmp_path / "comparison.jsonl"
    first = session()
    first.trial("7", "s")
    first.until("pair 1 of at most 50, first policy: success, progress 7 of 9")
    first.until("prepare the scene as it was")
    first.until("first start: ")
    first.until("both starts: ")
    first.press("o")
    first.until("both starts: ")
    first.press("\n")
    first.until("running:")
    first.press(".")
    first.until("before it, if you like")
    first.press("3n")
    first.until("note: ")
    first.press("missed it\nf")
    first.until("second policy: failure, progress 3 of 9")
    first.trial("r")
    first.until("reason for the redo: ")
    first.press("\n")
    first.until("a redo needs a reason")
    first.press("cube fell\n")
    first.until("first policy: repeated, reason: cube fell")
    first.trial()
    time.sleep(0.1)
    first.process.kill()
    first.end()
    assert [record["kind"] for record in records(path)] == ["comparison", "trial", "trial", "redo"]

    again = session()
    again.until("pair 2 of at most 50, first policy")
    again.trial("f")
    again.until("first policy: failure")
    again.until("Enter starts")
    again.press("q")
    assert again.end() == 0
    # Nothing on the screen named the policies.
    assert not any(name in first.text + again.text for name in ("good.pth", "bad.pth"))
    told = [r for r in records(path) if r["kind"] == "trial"]
    assert [(t["pair"], t["position"], t["success"], t["progress"], t["note"]) for t in told] == [
        (0, 0, True, 7, ""),
        (0, 1, False, 3, "missed it"),
        (1, 0, False, None, ""),
    ]
    assert (tmp_path / told[0]["pictures"]["camera"]).is_file()

    sealed = compare("--report").stdout
    assert "1 complete pairs, of which 1 differ; e-value 1, 20 decides" in sealed
    assert "good.pth" not in sealed
    assert "wins" not in json.loads(compare("--report", "--json").stdout)
    whole = compare("--report", "--reveal").stdout
    assert "good.pth" in whole
    assert "redone: cube fell" in whole
    assert "failure: missed it" in whole
    assert records(path)[-1] == {"kind": "revealed", "pairs": 1}


def test_a_person_decides_and_then_learns_which_policy_it_was(session, tmp_path):
    session = session("--max-pairs", "1")
    session.trial("s")
    session.trial("s")
    assert session.end() == 0
    assert "not decided after 1 pair: no pair differs" in session.text
    assert session.text.index("A: ") < session.text.index("good.pth")
    assert records(tmp_path / "comparison.jsonl")[-1] == {"kind": "revealed", "pairs": 1}


@pytest.mark.nightly
def test_quit_in_a_trial_loses_that_trial_only(session, tmp_path):
    session = session()
    session.trial("f")
    session.trial("q")
    assert session.end() == 0
    assert "resumes the comparison" in session.text
    assert len(records(tmp_path / "comparison.jsonl")) == 2


def test_a_signal_in_a_trial_ends_it_and_the_trials_before_are_kept(session, tmp_path):
    session = session()
    session.trial("f")
    session.trial()
    time.sleep(0.2)
    session.process.send_signal(signal.SIGTERM)
    assert session.end() == 143
    assert "Traceback" not in session.text
    assert len(records(tmp_path / "comparison.jsonl")) == 2


def test_a_robot_judges_by_itself(compare, policies):
    words = (*policies, *COIN, "--steps", 4, "--out", "c.jsonl", "--json")
    told = json.loads(compare(*words).stdout)
    assert told["decided"] == "A" and told["wins"] >= 7
    assert told["p_value"] <= 0.05
    # A second call has nothing to do; other settings are refused.
    assert json.loads(compare(*words).stdout) == told
    assert json.loads(compare("--report", "--out", "c.jsonl", "--json").stdout) == told
    swapped = (*policies[::-1], *words[2:])
    assert "another policy A" in compare(*swapped, code=2).stderr
    unable = (*words[:-3], "--out", "no.jsonl", "--robot-arg", "puts_up=false")
    assert "use --judge person" in compare(*unable, code=2).stderr
    other = compare(*words, "--alpha", 0.01, code=2).stderr
    assert "begun with alpha 0.05, not 0.01" in other


def test_in_a_simulator_both_begin_with_the_same_seed(compare, policies, tmp_path):
    for name in ("pendulum_a.pth", "pendulum_b.pth"):
        constant_checkpoint(tmp_path / name, 0.1, control_freq=20.0)
    # In step, because in real time a busy machine would leave out actions.
    robot = ("--robot", "sim", "--robot-arg", "in_step=true", "--steps", 5)
    words = ("pendulum_a.pth", "pendulum_b.pth", *robot, "--max-pairs", 2, "--json")
    told = json.loads(compare(*words).stdout)
    assert told["words"].startswith("not decided after 2 pairs: no pair differs")
    assert [trial["steps"] for trial in told["trials"]] == [5] * 4
    assert told["settings"]["judge"] == "robot"
