"""Generated pages of the site, and the list of its versions."""

import json
import re
from pathlib import Path

import pytest

from imitate.cli.main import VERBS
from imitate.config.config import Config
from imitate.config.schema import keys
from tests.loading import load

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reference():
    return load("scripts/site_reference.py")


@pytest.fixture
def versions():
    return load("scripts/site_versions.py")


# ---- reference -----------------------------------------------------------------------------------


def test_every_command_has_a_section_with_an_example(reference):
    page = reference.command_page()
    sections = dict(
        (text.partition("\n")[0], text)
        for text in page.replace("\n### ", "\n## ").split("\n## ")[1:]
    )
    assert {f"imitate {name}" for name in VERBS} <= set(sections)
    assert "imitate dataset convert" in sections
    assert [name for name, text in sections.items() if "```console\nimitate" not in text] == []


def test_options_have_their_words_and_defaults(reference):
    page = reference.command_page()
    (row,) = [line for line in page.splitlines() if "`-n, --episodes" in line and "50" in line]
    assert row.startswith("| `-n, --episodes <int range>` | Number of episodes to play. ")
    assert "default: 50" in row


def test_pages_that_a_help_text_names_are_links(reference):
    assert "[offline_rl](../offline_rl.md)" in reference.command_page()


def test_every_shared_key_is_on_the_page_once(reference):
    lines = reference.keys_page().splitlines()
    for key in keys(Config, ""):
        row = f"| `{key.path}` | {key.kind} | {key.default} | {key.meaning} |"
        assert lines.count(row) == 1, key.path


# ---- ends of lines -------------------------------------------------------------------------------


def test_names_in_code_wrap_between_words_and_options_do_not_wrap():
    lines = load("scripts/site_lines.py")
    assert lines.with_seams("<td><code>train.seq_length</code></td>") == (
        "<td><code>train.<wbr>seq_<wbr>length</code></td>"
    )
    assert lines.with_seams("<code>eval --step-timeout-s 3</code>") == (
        '<code>eval <span class="option">--step-timeout-s</span> 3</code>'
    )
    block = "<pre><code>imitate eval --seed 0 a_b.pth</code></pre>"
    assert lines.with_seams(block) == block


def test_a_range_stays_on_one_line_but_code_is_left_alone():
    lines = load("scripts/site_lines.py")
    assert lines.with_whole_numbers("<td>50/50 (93–100 %), 8 s</td>") == (
        '<td>50/50 <span class="whole">(93–100 %)</span>, 8 s</td>'
    )
    assert lines.with_whole_numbers("<code>1 - 2</code>") == "<code>1 - 2</code>"


# ---- versions ------------------------------------------------------------------------------------


def test_the_newest_version_is_the_one_that_readers_are_led_to(versions, tmp_path):
    for name in ("0.9.0", "0.10.0rc1", "0.10.0", "0.2.1", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text("")
    versions.write(tmp_path, "0.2.1")
    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [one["version"] for one in listed] == ["0.10.0", "0.10.0rc1", "0.9.0", "0.2.1"]
    assert [one["aliases"] for one in listed] == [["latest"], [], [], []]
    assert "url=0.10.0/" in (tmp_path / "index.html").read_text()


def test_a_version_that_was_not_built_is_refused(versions, tmp_path):
    with pytest.raises(SystemExit, match="build it first"):
        versions.write(tmp_path, "1.0.0")


# ---- what a host shows ---------------------------------------------------------------------------


def test_all_places_that_name_the_version_agree():
    named = {
        "pyproject.toml": r'^version = "(.+)"$',
        "CITATION.cff": r"^version: (.+)$",
        "imitate/system/version.py": r'^__version__ = "(.+)"$',
    }
    found = {
        path: re.search(pattern, (ROOT / path).read_text(), flags=re.MULTILINE)[1]
        for path, pattern in named.items()
    }
    assert len(set(found.values())) == 1, found
    assert f"\n## {found['CITATION.cff']}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_of_pages_beside_the_site_lead_somewhere(name):
    text = (ROOT / name).read_text()
    places = re.findall(r"\]\((?!https?:)([^)#\s]+)", text)
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_the_readme_fits_on_two_screens():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 80
