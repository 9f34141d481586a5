"""Commands in the documentation: each exists and takes the options and values that a page gives it."""

import importlib.util
import re
from pathlib import Path

import pytest
import typer

from imitate.cli.main import app
from imitate.config import load_config
from imitate.config.ready_configs import names
from tests.docs.pages import ROOT, commands

TOP = typer.main.get_command(app)
OURS = commands("imitate")
BENCHMARKS = [one for one in commands("python") if one.words[1:2] == ["-m"]]
SCRIPTS = [one for one in commands("bash") if one.words[1].startswith("scripts/")]


def test_there_are_many():
    assert len(OURS) > 120
    assert len(BENCHMARKS) > 40
    assert len(SCRIPTS) > 3


@pytest.mark.parametrize("command", OURS, ids=str)
def test_imitate_takes_it(command):
    words = command.words[1:]
    if words in (["--help"], ["--version"]):
        return
    context = TOP.make_context("imitate", words, resilient_parsing=False)
    name, verb, rest = TOP.resolve_command(context, words)
    while True:
        if "--help" in rest:
            return
        context = verb.make_context(name, list(rest), parent=context)
        if not hasattr(verb, "commands"):
            return
        name, verb, rest = verb.resolve_command(context, [*context.protected_args, *context.args])


NAMES = set(names())
READY = [
    one
    for one in OURS
    if one.words[1] in ("train", "dagger", "sweep", "check-algo")
    and any(word in NAMES for word in one.words)
]


@pytest.mark.parametrize("command", READY, ids=str)
def test_a_ready_configuration_takes_the_values(command):
    words = command.words
    (name,) = [word for word in words if word in NAMES]
    values = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    if not any("$" in value for value in values):
        load_config(name, [value for value in values if "{" not in value or "}" in value])


@pytest.mark.parametrize("command", BENCHMARKS, ids=str)
def test_a_benchmark_has_the_options(command):
    module, *rest = command.words[2:]
    if module in ("pytest", "build", "http.server", "cProfile"):
        return
    found = importlib.util.find_spec(module)
    assert found is not None, module
    place = Path(found.origin)
    text = "\n".join(
        path.read_text()
        for path in (place.parent.rglob("*.py") if place.name == "__init__.py" else [place])
    )
    for option in (word for word in rest if re.fullmatch(r"--[a-z][\w-]*", word)):
        assert f'"{option}"' in text, option


@pytest.mark.parametrize("command", SCRIPTS, ids=str)
def test_a_script_is_there(command):
    assert (ROOT / command.words[1]).is_file()
