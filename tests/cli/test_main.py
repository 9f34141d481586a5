"""The frame of the command line: verbs, exit codes, what is imported when."""

import subprocess
import sys
import types

import pytest
import typer
from typer.testing import CliRunner

from imitate.cli import main as cli
from imitate.errors import DatasetError


def run(*args):
    return subprocess.run(
        [sys.executable, "-c", "from imitate.cli.main import main; main()", *args],
        capture_output=True,
        text=True,
        timeout=600,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def extra_verb(monkeypatch):
    """Adds a verb ``probe`` that does what the test wants."""

    def add(function):
        module = types.ModuleType("imitate.cli.probe")
        module.command = function
        monkeypatch.setitem(sys.modules, "imitate.cli.probe", module)
        monkeypatch.setitem(
            cli.VERBS, "probe", cli.Verb("probe", "command", "Only a test.", ("imitate probe",))
        )

    return add


def invoke(*args):
    return CliRunner().invoke(cli.app, list(args))


def test_version():
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, "imitate 0.1.0\n")


def test_help_names_every_verb_and_shows_the_whole_way():
    done = run("--help")
    assert done.returncode == 0
    for verb in ("collect", "train", "eval", "info", "dataset", "config"):
        assert f"\n  {verb} " in done.stdout
    assert "imitate train --config robosuite/lift/bc\n" in done.stdout


def test_a_user_error_is_one_line_and_exit_code_2(extra_verb):
    def probe() -> None:
        raise DatasetError("a.hdf5: demo_3: no actions; record it again")

    extra_verb(probe)
    done = invoke("probe")
    assert done.exit_code == 2
    assert done.stderr == "error: a.hdf5: demo_3: no actions; record it again\n"
    assert done.stdout == ""


def test_several_problems_are_several_lines(extra_verb):
    def probe() -> None:
        raise DatasetError("first\nsecond")

    extra_verb(probe)
    assert invoke("probe").stderr == "error: first\nerror: second\n"


def test_a_fault_of_the_program_keeps_its_traceback(extra_verb):
    def probe() -> None:
        raise ZeroDivisionError("a bug")

    extra_verb(probe)
    done = invoke("probe")
    assert done.exit_code == 1
    assert isinstance(done.exception, ZeroDivisionError)


def test_an_interrupt_exits_with_130(extra_verb):
    def probe() -> None:
        raise KeyboardInterrupt

    extra_verb(probe)
    done = invoke("probe")
    assert (done.exit_code, done.stderr) == (130, "interrupted\n")


def test_the_exit_code_of_a_verb_is_kept(extra_verb):
    def probe() -> None:
        raise typer.Exit(3)

    extra_verb(probe)
    assert invoke("probe").exit_code == 3


def test_options_reach_the_verb(extra_verb):
    seen = []

    def probe(path: str, count: int = typer.Option(1, "--count")) -> None:
        seen.append((path, count))

    extra_verb(probe)
    assert invoke("probe", "x", "--count", "7").exit_code == 0
    assert seen == [("x", 7)]
