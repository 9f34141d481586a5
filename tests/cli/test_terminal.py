"""Names out of files reach the terminal as text."""

import numpy as np
import pytest
from typer.testing import CliRunner

from imitate.cli.main import app
from imitate.data import DatasetWriter, Episode

NASTY = "\x1b[2J\x1b]0;owned\x07"


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def nasty(tmp_path):
    path = tmp_path / "demos.hdf5"
    steps = 4
    with DatasetWriter(path, {"env_name": f"Lift{NASTY}", "type": 1, "env_kwargs": {}}) as writer:
        writer.append_episode(
            Episode(
                obs={"state": np.zeros((steps, 2))},
                actions=np.zeros((steps, 1)),
                rewards=np.zeros(steps),
                terminals=np.zeros(steps, bool),
                timeouts=np.arange(steps) == steps - 1,
            )
        )
    return path


@pytest.mark.parametrize("words", [("info",), ("dataset", "doctor"), ("check-env",)])
def test_control_sequences_of_names_do_not_reach_the_terminal(nasty, words):
    done = run(*words, nasty)
    assert "\x1b" not in done.output and "\x07" not in done.output
    if words == ("info",):
        assert "Lift\\x1b[2J" in done.output


def test_nor_those_in_errors(tmp_path):
    done = run("info", tmp_path / f"no{NASTY}.hdf5")
    assert done.exit_code == 2
    assert "no\\x1b[2J" in done.output
    assert "\x1b" not in done.output
