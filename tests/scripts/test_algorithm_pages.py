"""Every algorithm has a page of the same form; its tables are those of the code, its methods and commands exist."""

import re
from functools import cache
from pathlib import Path

import pytest

from imitate.config import load_config
from imitate.config.loading import bundled
from tests.docs.pages import commands
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
def test_each_algorithm_has_a_page_with_tables_of_its_configurations_and_options(name):
    assert (PAGES / f"{name}.md").is_file(), f"write docs/algorithms/{name}.md"
    text = text_of(name)
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == HEADINGS
    assert pages.PLACE.findall(text) == ["configurations", "options"]
    filled = pages.filled(name, text)
    rows = pages.option_keys(name)
    assert [row.path for row in rows if f"| `{row.path}` | {row.kind} |" not in filled] == []
    assert [row.path for row in rows if not row.meaning] == []
    assert [
        one for one in pages.ready()[name] if one[:6] != "paper/" and f"| `{one}` |" not in filled
    ] == []


@pytest.mark.parametrize("name", ALGORITHMS)
def test_equations_name_methods_that_exist_and_curves_are_logged_under_these_names(name):
    found = list(equations.equations(text_of(name)))
    assert found, "no equation has the form **Title** · `Class.method`"
    for equation in found:
        for method in equation.names:
            assert callable(equations.code_of(name, method)), method
    unfolded = equations.with_code(name, text_of(name))
    assert unfolded.count('??? quote "') == sum(len(one.names) for one in found)
    _, _, section = text_of(name).partition("## What to watch\n")
    rows = section.partition("\n## ")[0].splitlines()
    curves = [curve for row in rows for curve in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    assert curves
    assert [one for one in curves if one.split("/")[-1] not in code()] == []


def test_each_page_trains_its_algorithm():
    """That its commands are accepted shows tests/docs/test_commands.py."""
    trained = {name: set() for name in ALGORITHMS}
    for page, _, words in commands("imitate"):
        if Path(page).parent.name == "algorithms" and "train" in words:
            configs = [name for name in words if bundled(name)]
            trained[Path(page).stem] |= {load_config(one).algo_name for one in configs}
    others = {name: found - {name} for name, found in trained.items() if found}
    assert [name for name in others if name not in trained[name]] == []
    assert set().union(*others.values()) <= {"bc", "flow_policy"}, (
        "only policies to build upon may be others"
    )
    assert len(others) > 0.8 * len(trained)


def test_the_index_and_the_navigation_name_each_page():
    index, navigation = (PAGES / "index.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    cure = "name each page in docs/algorithms/index.md and mkdocs.yml"
    assert [name for name in ALGORITHMS if f"]({name}.md)" not in index] == [], cure
    assert [name for name in ALGORITHMS if f"algorithms/{name}.md" not in navigation] == [], cure
    named = {path.stem for path in PAGES.glob("*.md")} - {"index"}
    assert named <= set(ALGORITHMS), "a page of no algorithm"


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_pages_name_the_number_of_algorithms(page):
    assert f"it contains {len(ALGORITHMS)} algorithms" in (ROOT / page).read_text()
