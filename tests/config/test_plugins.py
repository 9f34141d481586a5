"""Entry points count where packages are installed, not where somebody's files lie."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path):
    """A folder with a module that leaves a trace, and metadata that offer it as an algorithm."""
    info = tmp_path / "evil-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[imitate.algos]\nevil = evil_module\n")
    (tmp_path / "evil_module.py").write_text("open('canary', 'w').write('it ran')\n")
    (tmp_path / "own.json").write_text(json.dumps({"algo_name": "evil"}))
    return tmp_path


def check(folder, *more_path):
    paths = os.pathsep.join(map(str, (ROOT, *more_path)))
    return subprocess.run(
        [sys.executable, "-m", "imitate", "config", "check", "own.json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )


def test_metadata_in_the_working_folder_choose_no_module(folder):
    done = check(folder)
    assert done.returncode == 2 and "no algorithm 'evil'" in done.stdout + done.stderr
    assert not (folder / "canary").exists()


def test_a_folder_that_python_is_told_of_counts(folder):
    check(folder, folder)
    assert (folder / "canary").exists()
