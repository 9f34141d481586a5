"""Tests that a change reaches."""

import subprocess
from pathlib import Path

import pytest

from benchmarks import reached


@pytest.mark.parametrize(
    ("hunks", "lines"),
    [
        ("@@ -3 +3 @@", [3]),
        ("@@ -1,0 +2,3 @@\n+a\n@@ -9 +12 @@", [2, 3, 4, 12]),
        ("@@ -5,2 +4,0 @@", [4, 5]),  # of a deletion those around it
        ("", []),
    ],
)
def test_lines_after_the_change(hunks, lines):
    assert reached.changed_lines(hunks) == sum(1 << line for line in lines)


def test_without_a_map_those_that_name_the_module_are_reached(monkeypatch, capsys):
    monkeypatch.setattr(reached.mutation_map.reach, "__defaults__", (Path("/nowhere"),))
    found = reached.reached("imitate/system/images.py", 1 << 10)
    assert "tests/system/test_pixels.py" in found
    assert "not in the map of tests" in capsys.readouterr().err


def test_the_command_prints_changed_tests(monkeypatch, capsys, tmp_path):
    def git(*words, **options):
        wanted = {"rev-parse": "a\n", "diff": "tests/cli/test_x.py\ndocs/y.md\n", "ls-files": ""}
        return subprocess.CompletedProcess(words, 0, wanted[words[0][1]], "")

    monkeypatch.setattr("subprocess.run", git)
    monkeypatch.setattr("sys.argv", ["reached"])
    assert reached.main() == 0
    assert capsys.readouterr().out == "tests/cli/test_x.py\n"
