"""Which tests a set has, by their marks and by what is named on the command line."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import sets, times

TESTS = {
    "tests/cli/test_a.py::plain": (),
    "tests/cli/test_a.py::rare": ("nightly",),
    "tests/algo/test_contract.py::bc": ("slow", "quick"),
    "tests/algo/test_contract.py::other": ("later",),
    "tests/data/test_b.py::unit": (),
    "tests/data/test_b.py::dear": ("slow",),
    "tests/data/test_b.py::at_its_own_time": ("alone",),
}


def chosen(*arguments, of="fast", alone="with"):
    """Return the names of the tests that remain."""
    options = {"--set": of, "--alone": alone}
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    config = SimpleNamespace(
        getoption=options.get,
        args=list(arguments),
        hook=hook,
        rootpath=Path("/project"),
        invocation_params=SimpleNamespace(dir=Path("/project/tests")),
    )
    items = [
        SimpleNamespace(
            nodeid=node,
            path=Path(node.split("::")[0]),
            get_closest_marker=dict.fromkeys(marks, True).get,
        )
        for node, marks in TESTS.items()
    ]
    sets.select(config, items)
    return " ".join(item.nodeid.split("::")[1] for item in items)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, "plain bc other unit dear at_its_own_time"),
        ({"of": "nightly"}, "rare"),
        ({"of": "quick"}, "bc unit"),
        ({"of": "all"}, "plain rare bc other unit dear at_its_own_time"),
        ({"alone": "without"}, "plain bc other unit dear"),
        ({"alone": "only"}, "at_its_own_time"),
    ],
)
def test_a_set_has_the_tests_of_its_marks(options, wanted):
    assert chosen("cli", "data", **options) == wanted


@pytest.mark.parametrize(
    "named", ["cli/test_a.py::rare", "cli/test_a.py", "/project/tests/cli/test_a.py"]
)
def test_what_is_named_runs_whatever_its_marks(named):
    assert "rare" in chosen(named)


def test_seconds_of_processes_that_have_ended_and_that_live_are_counted(tmp_path):
    busy = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\n"
    before = times.cpu_s()
    subprocess.run([sys.executable, "-c", busy], check=True, stdout=subprocess.DEVNULL)
    ended = times.cpu_s()
    assert ended - before >= 0.3
    command = [sys.executable, "-c", busy + "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as living:
        living.stdout.readline()
        assert times.cpu_s() - ended >= 0.3
        living.communicate(b"\n")
