"""The tutorials, followed block by block in an empty folder."""

import ast
import importlib
from pathlib import Path

import pytest

from tests.loading import load

ROOT = Path(__file__).parents[2]
MARKS = {"install": [pytest.mark.robosuite], "cluster": [pytest.mark.ray]}

tutorials = load("scripts/tutorials.py")
PAGES = tutorials.pages()


def followed(path):
    """The page as a parameter, with its marks."""
    return pytest.param(path, marks=[pytest.mark.nightly, *MARKS.get(path.stem, [])], id=path.stem)


@pytest.fixture
def cluster(request, monkeypatch):
    """For the page of this name, the cluster of all tests, rather than one that the command starts."""
    if request.node.get_closest_marker("ray"):
        monkeypatch.setenv("RAY_ADDRESS", request.getfixturevalue("ray_nodes").address)


@pytest.mark.parametrize("path", [followed(path) for path in PAGES])
def test_each_command_of_a_tutorial_succeeds_and_prints(
    path, tmp_path, preloaded_commands, cluster
):
    page = tutorials.followed(path.read_text(), tmp_path, preloaded_commands)
    outputs = [block for block in tutorials.blocks(page) if block.title == "output"]
    assert outputs
    assert all(block.text.strip() for block in outputs)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_page_shows_what_was_printed_and_its_code_imports_what_exists(path):
    blocks = list(tutorials.blocks(path.read_text()))
    outputs = [block for block in blocks if block.title == "output"]
    assert all(block.text.strip() for block in outputs), "run: python scripts/tutorials.py"
    for block in (block for block in blocks if block.language == "python"):
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("imitate"):
                module = importlib.import_module(node.module)
                assert [one.name for one in node.names if not hasattr(module, one.name)] == []


def test_a_command_that_fails_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match="exit code 3"):
        tutorials.followed("```bash\nexit 3\n```\n", tmp_path)


def test_files_are_written_and_outputs_shown(tmp_path):
    page = '```python title="a.py"\nprint(6 * 7)\n```\n```bash\npython a.py\n```\n```text title="output"\n```\n'
    assert '```text title="output"\n42\n```' in tutorials.followed(page, tmp_path)


def test_of_long_outputs_the_first_and_last_lines_are_shown():
    lines = tutorials.shown("\n".join(map(str, range(100)))).splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("0", "99", tutorials.MOST_LINES + 1)
    assert "..." in lines


def test_the_index_and_the_navigation_name_each_tutorial():
    index = (ROOT / "docs" / "index.md").read_text()
    navigation = (ROOT / "mkdocs.yml").read_text()
    for path in PAGES:
        place = path.relative_to(ROOT / "docs").as_posix()
        assert f"]({place}" in index and f": {place}" in navigation, place
