"""Every algorithm has a page of the same form; its tables are those of the code, its methods and commands exist."""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import typer

from imitate.cli.main import app
from imitate.config import load_config
from tests.loading import load

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "algorithms"
HEADINGS = [
    "When to use it",
    "Try it",
    "Method",
    "Ready configurations",
    "Measured",
    "Options",
    "What to watch",
    "Departures from the paper",
    "References",
]


pages, equations = load("scripts/algorithm_pages.py"), load("scripts/algorithm_equations.py")
ALGORITHMS = pages.algorithms()


@cache
def code():
    """The package's whole code."""
    return "".join(path.read_text() for path in (ROOT / "imitate").rglob("*.py"))


def text_of(name):
    return (PAGES / f"{name}.md").read_text()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_algorithm_has_a_page_with_the_generated_tables_of_today(name):
    assert (PAGES / f"{name}.md").is_file(), f"write docs/algorithms/{name}.md"
    text = text_of(name)
    assert [match["part"] for match in pages.BLOCK.finditer(text)] == ["configurations", "options"]
    assert pages.filled(name, text) == text, "run: python scripts/algorithm_pages.py"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_pages_have_the_same_sections(name):
    assert re.findall(r"^## (.*)$", text_of(name), flags=re.MULTILINE) == HEADINGS


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_option_stands_in_the_page_with_a_meaning(name):
    text = text_of(name)
    missing = [row.path for row in pages.option_keys(name) if f"| `{row.path}` |" not in text]
    assert missing == []
    assert [row.path for row in pages.option_keys(name) if not row.meaning] == []


@pytest.mark.parametrize("name", ALGORITHMS)
def test_equations_name_methods_that_exist(name):
    found = list(equations.equations(text_of(name)))
    assert found, "no equation has the form **Title** · `Class.method`"
    for equation in found:
        for method in equation.names:
            assert callable(equations.code_of(name, method)), method
    unfolded = equations.with_code(name, text_of(name))
    assert unfolded.count('??? quote "') == sum(len(one.names) for one in found)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_curves_are_logged_under_these_names(name):
    """Each name in the table of curves is a text in the code."""
    _, _, section = text_of(name).partition("## What to watch\n")
    rows = section.partition("\n## ")[0].splitlines()
    curves = [curve for row in rows for curve in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    assert curves
    assert [one for one in curves if one.split("/")[-1] not in code()] == []


def commands(text):
    """Commands of the code blocks, with continued lines joined."""
    for block in re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("imitate "):
                yield shlex.split(line, comments=True)[1:]


def parsed(words):
    """Values of a command's options; nothing is run."""
    command, rest = typer.main.get_command(app), list(words)
    while hasattr(command, "get_command"):
        context = command.make_context(command.name, rest[:1], resilient_parsing=True)
        command = command.get_command(context, rest.pop(0))
    context = command.make_context(command.name, rest)
    return context.params


@pytest.mark.parametrize("name", ALGORITHMS)
def test_commands_of_the_pages_are_accepted(name):
    found = list(commands(text_of(name)))
    assert any("train" in words for words in found), "no training to try"
    trained = set()
    for words in found:
        values = parsed(words)
        if words[0] == "train" and values.get("config"):
            config = load_config(str(values["config"]), values.get("set_") or ())
            trained.add(config.algo_name)
    assert not trained or name in trained
    assert trained <= {name, "bc"}, "only policies to build upon may be others"


def test_the_index_and_the_navigation_name_each_page():
    index, navigation = (PAGES / "index.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    assert [name for name in ALGORITHMS if f"]({name}.md)" not in index] == []
    assert [name for name in ALGORITHMS if f"algorithms/{name}.md" not in navigation] == []
    named = {path.stem for path in PAGES.glob("*.md")} - {"index"}
    assert named <= set(ALGORITHMS), "a page of no algorithm"
