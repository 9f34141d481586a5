"""The frame of the command line: verbs, exit codes, what is imported when."""

import os
import subprocess
import sys
import types

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import imitate
from imitate.cli import main as cli
from imitate.errors import DatasetError
from tests.demo_files import episode, write_demos


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


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (
            DatasetError("a.hdf5: no actions; record it"),
            2,
            "error: a.hdf5: no actions; record it\n",
        ),
        (DatasetError("first\nsecond"), 2, "error: first\nerror: second\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (typer.Exit(3), 3, ""),
    ],
    ids=["user error", "several problems", "interrupt", "exit code"],
)
def test_how_a_command_ends(extra_verb, error, code, printed):
    def probe() -> None:
        raise error

    extra_verb(probe)
    done = invoke("probe")
    assert (done.exit_code, done.stderr, done.stdout) == (code, printed, "")


def test_a_fault_of_the_program_keeps_its_traceback(extra_verb):
    text = "def probe() -> None:\n    raise ZeroDivisionError('a bug')\n"
    exec(compile(text, imitate.__file__, "exec"), found := {})  # as code of this package
    extra_verb(found["probe"])
    done = invoke("probe")
    assert done.exit_code == 1
    assert isinstance(done.exception, ZeroDivisionError)


def test_options_reach_the_verb(extra_verb):
    seen = []

    def probe(path: str, count: int = typer.Option(1, "--count")) -> None:
        seen.append((path, count))

    extra_verb(probe)
    assert invoke("probe", "x", "--count", "7").exit_code == 0
    assert seen == [("x", 7)]


# ---- names out of files --------------------------------------------------------------------------

NASTY = "\x1b[2J\x1b]0;owned\x07"


@pytest.mark.parametrize("verb", ["info", "dataset doctor", "check-env"])
def test_control_sequences_of_names_reach_the_terminal_as_text(tmp_path, verb):
    env = {"env_name": f"Lift{NASTY}", "type": 1, "env_kwargs": {}}
    path = write_demos(tmp_path / "demos.hdf5", [episode(4, {"state": np.zeros((4, 2))})], env)
    printed = invoke(*verb.split(), str(path)).output
    assert "\x1b" not in printed and "\x07" not in printed
    assert verb != "info" or "Lift\\x1b[2J" in printed


def test_nor_those_in_errors(tmp_path):
    done = invoke("info", str(tmp_path / f"no{NASTY}.hdf5"))
    assert done.exit_code == 2
    assert "no\\x1b[2J" in done.output
    assert "\x1b" not in done.output


# ---- the working folder --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "safe"), [("/usr", True), ("", False), (".", False), ("here", False)]
)
def test_processes_import_from_the_working_folder_only_if_this_one_does(
    tmp_path, monkeypatch, place, safe
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    monkeypatch.delenv("PYTHONSAFEPATH")
    monkeypatch.setattr(sys, "path", ["/nowhere", str(tmp_path) if place == "here" else place])
    monkeypatch.setattr(cli, "app", lambda **_: None)
    cli.main()
    assert os.environ.get("PYTHONSAFEPATH") == ("1" if safe else None)


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 always searches the working folder"
)
def test_a_worker_runs_no_module_of_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "signal.py").write_text("open('ran', 'w')\n")
    code = (
        "import sys; sys.path.pop(0); import multiprocessing; from imitate.cli import main as cli\n"
        "cli.app = lambda **_: None; cli.main()\n"
        "worker = multiprocessing.get_context('spawn').Process(target=print); worker.start(); worker.join()\n"
        "assert worker.exitcode == 0"
    )
    paths = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    environ = {**os.environ, "PYTHONPATH": paths}
    environ.pop("PYTHONSAFEPATH", None)
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, check=True)
    assert not (tmp_path / "ran").exists()
