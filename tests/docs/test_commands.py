"""Commands in the documentation: each exists and takes the options and values that a page gives it."""

import re
import shlex
from collections import Counter
from itertools import groupby

import pytest
import typer

from imitate.cli.main import app
from imitate.config import load_config
from imitate.config.loading import bundled
from tests.docs.pages import ROOT, commands

TOP = typer.main.get_command(app)
TRAINING = ("train", "dagger", "sweep", "check-algo")
"""Commands that take a configuration."""
OTHERS = ("pytest", "build", "http.server", "cProfile")
"""Modules of other packages."""


def imitate(_, *words):
    """The command takes these options; a ready configuration takes the values."""
    if words in (("--help",), ("--version",)):
        return
    context = TOP.make_context("imitate", list(words), resilient_parsing=False)
    name, verb, rest = TOP.resolve_command(context, list(words))
    while "--help" not in rest:
        context = verb.make_context(name, list(rest), parent=context)
        if not hasattr(verb, "commands"):
            break
        name, verb, rest = verb.resolve_command(context, [*context.protected_args, *context.args])
    ready = [word for word in words if bundled(word)] if words[0] in TRAINING else []
    values = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    if ready and not any("$" in value for value in values):
        load_config(ready[0], [value for value in values if "{" not in value or "}" in value])


def python(_, option, module="", *words):
    """A module of ours is there and has the options."""
    if option != "-m" or module in OTHERS:
        return
    place = ROOT / module.replace(".", "/")
    files = list(place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")])
    assert files, module
    text = "\n".join(path.read_text() for path in files)
    for word in (word for word in words if re.fullmatch(r"--[a-z][\w-]*", word)):
        assert f'"{word}"' in text, word


def bash(_, script, *words):
    assert not script.startswith("scripts/") or (ROOT / script).is_file()


CHECKS = {check.__name__: check for check in (imitate, python, bash)}
BY_PAGE = {page: list(found) for page, found in groupby(commands(*CHECKS), lambda one: one.page)}


def test_there_are_many():
    counts = Counter(one.words[0] for ones in BY_PAGE.values() for one in ones)
    assert counts["imitate"] > 120 and counts["python"] > 20 and counts["bash"] > 3


@pytest.mark.parametrize("page", BY_PAGE)
def test_commands_of_a_page_are_accepted(page, subtests):
    for command in BY_PAGE[page]:
        with subtests.test(str(command)):
            CHECKS[command.words[0]](*command.words)


def test_lines_beside_robomimics_are_accepted(subtests):
    page = (ROOT / "docs/from_robomimic.md").read_text()
    rows = page[page.index("## Commands") : page.index("<!-- options")]
    lines = re.findall(r"`(imitate [^`]+)`", rows)
    assert len(lines) > 15
    for line in lines:
        with subtests.test(line):
            imitate(*shlex.split(line))


@pytest.mark.parametrize(
    "line",
    [
        "imitate trian",
        "imitate train --epoch 3",
        "imitate train --config bc/bc --set train.batchsize=3",
        "python -m benchmarks.nothing",
        "python -m benchmarks.structure --nothing",
        "bash scripts/nothing.sh",
    ],
)
def test_what_does_not_exist_is_found(line):
    words = line.split()
    with pytest.raises(Exception):  # noqa: B017, as each parser has its own
        CHECKS[words[0]](*words)
