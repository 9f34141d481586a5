"""Pages of the reference that are made from the program: its commands, and the keys of a configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import typer

from imitate.cli.main import VERBS, app
from imitate.config.config import Config
from imitate.config.schema import keys

_PAGE = re.compile(r"docs/([\w\\]+)\.md")
NO_WRAP = "\b"  # click: the lines of a paragraph that begins with it stay as they are


# ---- commands ------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, Any]]:
    """Return each command and sub-command: its words without ``imitate``, and the click command."""
    top: Any = typer.main.get_command(app)
    for name in VERBS:
        loaded = top.get_command(None, name).load()
        yield name, loaded
        for below, command in getattr(loaded, "commands", {}).items():
            yield f"{name} {below}", command


def command_page() -> str:
    """Return the page of all commands: purpose, arguments and options, examples."""
    intro = (
        "# Commands\n\n"
        "`imitate COMMAND --help` prints the same in a terminal. "
        "Exit codes: 0 done; 1 a training or an evaluation failed; 2 invalid input, with the remedy in one line; "
        "130 and 143 interrupted.\n"
    )
    return "\n".join([intro, *(_command(words, command) for words, command in commands())])


def _command(words: str, command: Any) -> str:
    level = "##" if " " not in words else "###"
    parts = [f"{level} imitate {words}", _paragraphs(command.help or "")]
    rows = list(_rows(words, command))
    if rows:
        parts.append("\n".join(["| argument or option | meaning |", "|---|---|", *rows]))
    if command.epilog:
        lines = [line.strip() for line in command.epilog.splitlines()]
        examples = [line for line in lines if line and line not in (NO_WRAP, "Examples:")]
        parts.append("\n".join(["```console", *examples, "```"]))
    return "\n\n".join(parts) + "\n"


def _paragraphs(text: str) -> str:
    """Return a help text as Markdown; tables that click does not wrap become preformatted."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(
        "```text\n" + paragraph.strip(f"{NO_WRAP}\n") + "\n```"
        if paragraph.lstrip().startswith(NO_WRAP)
        else " ".join(_escaped(paragraph).split())
        for paragraph in paragraphs
    )


def _rows(words: str, command: Any) -> Iterator[str]:
    """Return a row for each argument and option, as in the help of a terminal."""
    context = command.make_context(words, [], resilient_parsing=True)
    for param in command.params:
        record = param.get_help_record(context)
        if record and param.name != "help":
            names, meaning = record
            yield f"| `{names}` | {_cell(meaning)} |"


def _cell(text: str) -> str:
    return " ".join(_escaped(text).replace("|", "\\|").split())


def _escaped(text: str) -> str:
    """Escape Markdown in a text and make links of its pages; code in backticks stays as it is."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _plain(part) for part in parts)


def _plain(text: str) -> str:
    marked = re.sub(r"([*_\[])", r"\\\1", text.replace("<", "&lt;"))
    return _PAGE.sub(lambda m: f"[{m[1]}](../{m[1]}.md)".replace("\\", ""), marked)


# ---- keys of a configuration ---------------------------------------------------------------------

PARTS = {
    "algo_name": "",
    "experiment": "Name, logging, checkpoints, evaluation during training.",
    "train": "Data, batches, epochs, precision, online RL.",
    "algo": "Each algorithm has keys of its own, such as `algo.chunk.execute`: see *Options* on its page under "
    "[algorithms](../algorithms/index.md), and [windows and chunks](../policies.md#windows-and-chunks).",
    "observation": "Observations that the policy sees, and the networks that encode them.",
    "cluster": "Where workers run.",
    "meta": "Written by sweeps.",
}
"""Sections of the tree in the order of the page, each with a line about it."""


def keys_page() -> str:
    """Return the page of all shared keys, by section."""
    found = [key for key in keys(Config, "")]
    by_part = {
        part: list(group) for part, group in groupby(found, lambda key: key.path.split(".")[0])
    }
    intro = (
        "# Configuration keys\n\n"
        "Every key that all algorithms share, with its type, default and meaning. "
        "How files, overrides and paths work: [configuration files](index.md#configuration-files).\n\n"
        "`imitate config keys` prints this table, `imitate config keys bc` the keys of `algo` for `bc`, and "
        "`imitate config explain FILE` explains the keys of one file.\n"
    )
    parts = [intro]
    for part, about in PARTS.items():
        parts.append(f"## `{part}`\n")
        if about:
            parts.append(f"{about}\n")
        rows = by_part.get(part, [])
        if rows:
            lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
            lines += [f"| `{k.path}` | {k.kind} | {k.default} | {k.meaning} |" for k in rows]
            parts.append("\n".join(lines) + "\n")
    left = set(by_part) - set(PARTS)
    if left:
        raise ValueError(
            f"no line about the sections {sorted(left)}: add them to PARTS in {__name__}"
        )
    return "\n".join(parts)
