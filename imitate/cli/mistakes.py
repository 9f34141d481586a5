"""Mistakes in a command line: unknown options, missing and wrong values, each in a line, all of them together."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import typer

from imitate.cli.other_tools import in_other_tools
from imitate.errors import ConfigError, nearest

UsageError: Any = typer.BadParameter.__mro__[1]
"""The class of all mistakes that the parser finds."""
_OF_FILES = ("--agent", "--checkpoint", "--config", "--dataset", "--file", "--input", "--path")
"""Options of other toolkits for what is an argument here."""
_NEAR = 0.75
"""Likeness from which a name is taken for a misspelt option."""


@dataclass
class _Words:
    """Words of a command line by their kind."""

    known: list[str] = field(default_factory=list)
    unknown: list[tuple[str, str | None]] = field(default_factory=list)
    swallowed: bool = False


def mistakes(error: Any, args: Sequence[str]) -> list[str]:
    """Return a line for each mistake of a command line.

    Args:
        error: the first mistake, which the parser has found.
        args: the whole command line, without ``imitate``.
    """
    context = error.ctx
    if context is None or context.parent is None:
        return [_plain(error)]
    path = _path(context)
    if hasattr(context.command, "commands"):
        return [_of_group(context.command.commands, path, list(args)[_length(context) :])]
    words = _sorted(context.command, list(args)[_length(context) :])
    lines = [
        f"{name}: {path} has no such option; {_instead(name, value, path, context.command, args)}"
        for name, value in words.unknown
    ]
    return [*lines, *_of_values(context, words, lines)] or [_plain(error)]


def as_typed(line: str, args: Sequence[str]) -> str:
    """Return a message in which paths are written as they were typed: relative, unless this folder was typed."""
    here = os.getcwd()
    if len(here) > 1 and not any(here in arg for arg in args):
        line = line.replace(f"{here}{os.sep}", "")
    for word in (part for arg in args for part in (arg, arg.partition("=")[2])):
        if word and "/" not in word[:1] and not word.startswith("-"):
            line = line.replace(os.path.abspath(word), word)
    return line


def _of_group(commands: Collection[str], path: str, words: list[str]) -> str:
    """Describe the name of a command that a group does not have."""
    given = words[0] if words else ""
    if given.startswith("-"):
        return (
            f"{given}: {path} has no such option; name one of its commands: {', '.join(commands)}"
        )
    return f"there is no command '{path} {given}'; {nearest(given, commands)}"


def _path(context: Any) -> str:
    """Return the name of a command with that of its group, such as 'dataset render'."""
    names = []
    while context.parent is not None:
        names.append(str(context.info_name))
        context = context.parent
    return " ".join(reversed(names))


def _length(context: Any) -> int:
    return len(_path(context).split())


def _options(command: Any) -> dict[str, Any]:
    """Return the options by each of their names."""
    found = [one for one in command.params if one.param_type_name == "option"]
    names = {name: one for one in found for name in (*one.opts, *one.secondary_opts)}
    return {**names, "--help": None, "-h": None}


def _takes_value(option: Any) -> bool:
    return option is not None and not option.is_flag


def _sorted(command: Any, args: list[str]) -> _Words:
    options, words = _options(command), _Words()
    while args:
        word = args.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            words.known += [word, *args]
            break
        if not word.startswith("-") or word[1:2].isdigit() or len(word) < 2:
            words.known.append(word)
        elif name in options or (not word.startswith("--") and word[:2] in options):
            words.known.append(word)
            if name in options and _takes_value(options[name]) and not equals and args:
                words.known.append(args.pop(0))
        elif equals or not args or args[0].startswith("-"):
            words.unknown.append((name, value if equals else None))
        else:
            words.swallowed = True
            words.unknown.append((name, args.pop(0)))
    return words


def _instead(name: str, value: str | None, path: str, command: Any, args: Sequence[str]) -> str:
    """Return what to type in place of an unknown option."""
    options = _options(command)
    spelt = name.replace("_", "-").lower()
    if spelt in options:
        return f"it is {spelt}"
    known = in_other_tools(name, path, options, value)
    keys = _keys(name.lstrip("-").replace("-", "_"), args) if "--set" in options else []
    if keys and (not known or "--set algo." in known):
        shown = "VALUE" if value is None else value
        return f"the configuration has it: {' or '.join(f'--set {key}={shown}' for key in keys)}"
    if known:
        return known
    if spelt in _OF_FILES and value is not None:
        return f"write `imitate {path} {value}`"
    near = get_close_matches(name, options, n=1, cutoff=_NEAR)
    if near:
        return f"did you mean {near[0]}?"
    return f"`imitate {path} --help` lists its options"


def _keys(word: str, args: Sequence[str]) -> list[str]:
    """Return the keys of the configuration that are, or end with, a word; [] if there are many."""
    from imitate.config.config import keys_of
    from imitate.config.key_hints import keys_that_mean
    from imitate.config.loading import read_tree

    algo_name = None
    for before, text in zip(args, args[1:], strict=False):
        if before in ("--config", "-c", "sweep", "check-algo"):
            with suppress(ConfigError):
                algo_name = read_tree(text, quiet=True).get("algo_name")
    return keys_that_mean(word, keys_of(algo_name))


def _of_values(context: Any, words: _Words, told: Sequence[str]) -> Iterator[str]:
    """Describe missing and wrong values, and words too many; no option that a remedy already adds is missing."""
    command = context.command
    tried = type(context)(command, info_name=context.info_name, parent=context.parent)
    try:
        values, rest, _ = command.make_parser(tried).parse_args(args=list(words.known))
    except UsageError as error:
        yield _plain(error)
        return
    for parameter in command.get_params(tried):
        if parameter.is_eager:
            continue
        try:
            _, rest = parameter.handle_parse_result(tried, values, rest)
        except UsageError as error:
            # The value of an unknown option may be the argument that seems to be missing.
            added = words.swallowed
            if parameter.param_type_name != "argument":
                added = any(f"write {name} " in line for line in told for name in parameter.opts)
            if not (added and type(error).__name__ == "MissingParameter"):
                yield _plain(error)
    if rest and not told:
        yield _too_many([str(word) for word in rest], words.known, command, _path(context))


def _too_many(rest: list[str], known: list[str], command: Any, path: str) -> str:
    """Describe words that are neither an option nor an argument."""
    options = _options(command)
    at = known.index(rest[0])
    before = [place for place in range(at) if known[place] in options]
    name = known[before[-1]] if before else "--"
    option: Any = options.get(name)
    if _takes_value(option) and (option.multiple or at - before[-1] == 2):
        first, *others = *known[before[-1] + 1 : at], *rest
        together = f"{name} {','.join((first, *others))}"
        if option.multiple:
            together = " ".join(f"{name} {word}" for word in (first, *others))
        return f"{name}: takes one word, got {first} {' '.join(others)}: write {together}"
    given = ", ".join(f"'{word}'" for word in rest)
    return (
        f"{path}: takes no further words, got {given}; `imitate {path} --help` shows what it takes"
    )


def _plain(error: Any) -> str:
    return " ".join(str(error.format_message()).split())
