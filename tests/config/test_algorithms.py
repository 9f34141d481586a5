"""Algorithms and plugins by name."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from imitate.config import OpenSection, Section, algorithms
from imitate.config.algorithms import available, find, register
from imitate.errors import ConfigError


def test_a_second_registration_is_refused():
    entry = find("config_toy")
    with pytest.raises(ConfigError, match="algorithm 'config_toy' is already registered by "):
        register("config_toy", None, lambda section: (object, {}))
    assert find("config_toy") is entry


def test_without_a_section_the_subtree_is_open():
    section = find("config_open").section
    assert issubclass(section, OpenSection)
    assert section.model_validate({"anything": [1]}).anything == (1,)


def test_an_algorithm_is_imported_by_name_on_first_use():
    assert find("bc").section.__module__ == "imitate.algo.bc"
    assert "bc" in available()


@pytest.mark.parametrize("name", ["bx", "algo", "../bc", "bc.x", "", "os"])
def test_an_unknown_name(name):
    with pytest.raises(ConfigError, match="no algorithm '.*', (did you mean|valid names)"):
        find(name)


def test_an_entry_point_of_another_package(monkeypatch, tmp_path):
    (tmp_path / "config_test_plugin.py").write_text(
        "from imitate.config.algorithms import register\n"
        "register('config_plugin', None, lambda section: (dict, {'a': 1}))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    points = [EntryPoint("config_plugin", "config_test_plugin", algorithms.ENTRY_POINTS)]

    def installed_points(group, name=None):
        return [p for p in points if p.group == group and name in (None, p.name)]

    monkeypatch.setattr(algorithms, "installed_points", installed_points)
    assert "config_plugin" in available()
    assert find("config_plugin").to_class(None) == (dict, {"a": 1})


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (
            "json",
            r"the entry point 'config_bad' .* names json, which registers no algorithm of that name",
        ),
        ("no_such_module_at_all", "cannot be loaded: No module named 'no_such_module_at_all'"),
        ("json:nothing", "cannot be loaded: module 'json' has no attribute 'nothing'"),
    ],
)
def test_an_entry_point_that_gives_no_algorithm(monkeypatch, module, words):
    points = [EntryPoint("config_bad", module, algorithms.ENTRY_POINTS)]
    monkeypatch.setattr(
        algorithms,
        "installed_points",
        lambda group, name=None: [p for p in points if name in (None, p.name)],
    )
    with pytest.raises(ConfigError, match=words):
        find("config_bad")


def test_importing_the_configuration_imports_no_torch():
    code = (
        "import sys, imitate.config, imitate.config.schema, imitate.config.readiness, imitate.config.from_data\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=False).returncode == 0


def test_a_section_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match=r"'mine': its section Section .*AlgoSection"):
        register("mine", Section, dict)


def test_variants_stand_in_their_method_s_file():
    assert find("cal_ql").to_class.__module__ == "imitate.algo.cql"
    assert {"cql", "cal_ql", "causal_bc"} <= set(available())


def test_a_name_that_is_forgotten_is_free_again():
    def to_class(section):
        return object, {}

    for _ in range(2):
        algorithms.register("forgotten", None, to_class)
        assert algorithms.find("forgotten").to_class is to_class
        algorithms.unregister("forgotten")
    with pytest.raises(ConfigError, match="no algorithm 'forgotten'"):
        algorithms.find("forgotten")
    with pytest.raises(ConfigError, match="algorithm 'forgotten' is not registered"):
        algorithms.unregister("forgotten")


ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path):
    """A folder with a module that leaves a trace, and metadata that offer it as an algorithm."""
    info = tmp_path / "evil-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[imitate.algos]\nevil = evil_module\n")
    (tmp_path / "evil_module.py").write_text("open('canary', 'w').write('it ran')\n")
    return tmp_path


SEARCH = """
import os, sys
sys.path[0] = os.getcwd()
from imitate.system.extras import installed_points
for point in installed_points("imitate.algos", "evil"):
    point.load()
"""
"""`python -m imitate` as it starts in the folder: the folder comes first where modules are searched."""


def check(folder, *more_path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *more_path)))}
    subprocess.run([sys.executable, "-c", SEARCH], cwd=folder, env=env, check=True)


def test_metadata_in_the_working_folder_choose_no_module(folder):
    check(folder)
    assert not (folder / "canary").exists()


def test_a_folder_that_python_is_told_of_counts(folder):
    check(folder, folder)
    assert (folder / "canary").exists()
