"""The plug-in package examples/own_format: a dataset format by an entry point."""

import json
import sys
from pathlib import Path

import pytest

from imitate.data import DatasetFile
from imitate.data.formats import registry
from imitate.errors import DatasetError
from scripts.tutorials import install
from tests.calling import call

PACKAGE = Path(__file__).parents[2] / "examples" / "own_format"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The package, as pip installs it."""
    site = tmp_path / "site"
    site.mkdir()
    install(PACKAGE, site)
    monkeypatch.syspath_prepend(str(site))
    yield site
    sys.modules.pop("joint_log", None)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "arm.jsonl"
    lines = [
        {"episode": e, "joints": [e, t], "command": [t / 10], "success": t == 3 and e == 1}
        for e in range(2)
        for t in range(4)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_its_files_are_recognised_and_converted(installed, log, tmp_path):
    assert registry.detect(log).name == "joint_log"
    call("dataset convert --fps 10", log, tmp_path / "arm.hdf5")
    with DatasetFile(tmp_path / "arm.hdf5") as file:
        assert (file.control_freq, file.demos()) == (10, ["demo_0", "demo_1"])
        assert file.read("demo_1", "obs/joints").tolist() == [[1, t] for t in range(4)]
        assert file.read("demo_1", "actions")[:, 0].tolist() == [0.0, 0.1, 0.2, 0.3]
        assert [file.read(demo, "rewards").sum() for demo in file.demos()] == [0.0, 1.0]


def test_it_is_in_the_list_of_formats(installed):
    assert "joint_log" in registry.names()
    assert "a line of JSON per step" in call("dataset convert --formats").output


def test_a_damaged_line_is_named(installed, log, tmp_path):
    log.write_text(
        log.read_text().replace('"command"', '"comand"', 5).replace("comand", "command", 4)
    )
    done = call("dataset convert", log, tmp_path / "arm.hdf5", code=2)
    assert "line 5 has no 'command'" in done.output


def test_without_the_package_the_file_is_of_no_known_format(log):
    with pytest.raises(DatasetError, match="looks like none of the formats"):
        registry.detect(log)
    with pytest.raises(DatasetError, match="entry points in the group 'imitate.formats'"):
        registry.find("joint_log")


@pytest.mark.parametrize(
    ("code", "words"), [("FORMAT = 3\n", "is 3; expected a Format"), ("", "cannot be loaded")]
)
def test_a_damaged_package_is_named(installed, code, words):
    (installed / "joint_log.py").write_text(code)
    with pytest.raises(DatasetError, match=words):
        registry.find("joint_log")
