"""Help of every command: whole, with an example, and in the field's words."""

import re
from functools import cache

import pytest
import typer
from typer.testing import CliRunner

from imitate.cli.main import VERBS, app

PRIVATE = re.compile(
    r"\b(practi[cs]\w*|mend(ed|ing|s)?|gone on|goes on|going on with|go on with|aloud|verbs?|lived through)\b",
    re.IGNORECASE,
)
WIDTH = 80


def commands():
    """Words of every command and sub-command."""
    top = typer.main.get_command(app)
    for name in VERBS:
        yield (name,)
        loaded = top.get_command(None, name).load()
        yield from ((name, below) for below in getattr(loaded, "commands", {}))


@cache
def help_of(*words):
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": str(WIDTH)})
    assert done.exit_code == 0, done.output
    return done.stdout


COMMANDS = list(commands())


def test_there_are_many():
    assert len(COMMANDS) > 30 and {("dataset", "convert"), ("config", "check")} <= {*COMMANDS}


@pytest.mark.parametrize("words", [(), *COMMANDS], ids=" ".join)
def test_whole_and_in_ordinary_words_with_examples_that_can_be_copied(words):
    text = help_of(*words)
    assert not re.search("\\\\b|\b|…", text)
    lines = [line for line in text.splitlines() if not line.startswith("Usage:")]
    assert [line for line in lines if line.endswith("...")] == []
    assert words[:1] != ("config",) or max(map(len, text.splitlines())) <= WIDTH
    found = PRIVATE.search(text)
    assert found is None, f"'{found[0]}' in the help of {words}"
    if not words:
        return
    before, found, examples = text.partition("Examples:\n")
    assert found, "no examples: add them to imitate/cli/help_texts.py"
    # Command lines are among the examples, which are never wrapped.
    assert not re.search(r"^\s+imitate [a-z-]+ .*--", before, re.MULTILINE)
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    wanted = f"imitate {' '.join(words)}"
    assert lines and [line for line in lines if f"{line} ".partition(f"{wanted} ")[0]] == []


@pytest.mark.parametrize("words", [(), ("dataset",), ("config",)], ids=" ".join)
def test_summaries_in_lists_are_whole_sentences(words):
    _, _, listed = help_of(*words).partition("Commands:\n")
    listed = listed.partition("Examples:")[0]
    entries = re.split(r"\n(?=  \S)", listed.rstrip())
    for entry in entries:
        assert entry.rstrip().endswith("."), entry
        assert all(len(line) <= WIDTH for line in entry.splitlines())


def test_summaries_of_the_top_level_fit_one_line():
    room = WIDTH - 2 - 6 - max(map(len, VERBS))
    assert [name for name, verb in VERBS.items() if len(verb.summary) > room] == []


def test_tables_in_help_keep_their_lines():
    lines = help_of("check-algo").splitlines()
    assert (
        "  observations  the environment has the observations that the configuration names" in lines
    )
    assert "  weights       weights with a gradient change" in lines
