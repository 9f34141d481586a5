"""From pydantic's errors to lines that say which key, what was found, what is wanted and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from imitate.config.algorithms import find
from imitate.config.section import Section, child_type
from imitate.errors import nearest


def problem_lines(error: ValidationError, root: type[Section], tree: Any) -> list[str]:
    """One line per problem.

    Args:
        error: what pydantic found in ``tree``.
        root: the type that ``tree`` was checked against.
        tree: the plain JSON tree.
    """
    wanted: dict[str, list[str]] = {}
    found: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        keys = _real_keys(detail["loc"], tree)
        path = ".".join(str(key) for key in keys)
        text, value = _describe(detail, keys, root, tree)
        if text not in wanted.setdefault(path, []):
            wanted[path].append(text)
        found[path] = value
    lines = []
    for path, texts in wanted.items():
        got = f"got {found[path]}, " if found[path] else ""
        lines += "\n".join(
            f"{path}: {got}{' or '.join(texts)}" if path else t for t in texts[:1]
        ).splitlines()
    return lines


def _real_keys(loc: Sequence[int | str], tree: Any) -> list[int | str]:
    """``loc`` without the names of union branches that pydantic puts in."""
    keys: list[int | str] = []
    node = tree
    for i, key in enumerate(loc):
        inside = isinstance(node, dict) and key in node
        if inside or (isinstance(node, list | tuple) and isinstance(key, int)):
            keys.append(key)
            node = node[key]  # type: ignore[index]
        elif isinstance(node, dict) and i == len(loc) - 1 and isinstance(key, str):
            keys.append(key)  # a missing key
    return keys


def _describe(
    detail: ErrorDetails, keys: list[int | str], root: type[Section], tree: Any
) -> tuple[str, str]:
    """What is wanted, and the value found ('' where it does not help)."""
    kind, message = detail["type"], detail["msg"]
    if kind == "extra_forbidden":
        section = _section_at(root, keys[:-1], tree)
        return f"unknown key, {nearest(str(keys[-1]), section.model_fields if section else ())}", ""
    if kind == "missing":
        return "is missing", ""
    if kind == "value_error":
        return message.removeprefix("Value error, "), ""
    if kind == "conflict":
        return message, ""
    value = repr(_plain_value(detail["input"]))
    text = (
        message.replace("Input should", "should")
        .removeprefix("should be ")
        .replace("dictionary or instance", "object")
    )
    wanted = f"wanted {text}"
    if kind == "literal_error" and isinstance(detail["input"], str):
        names = [
            name.strip("' ") for name in detail["ctx"]["expected"].replace(" or ", ",").split(",")
        ]
        hint = nearest(detail["input"], names)
        wanted += f", {hint}" if hint.startswith("did") else ""
    return wanted, value if len(value) <= 80 else value[:77] + "..."


def _plain_value(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _section_at(root: type[Section], keys: Sequence[int | str], tree: Any) -> type[Section] | None:
    section: type[Section] | None = root
    for depth, key in enumerate(keys):
        if section is None or isinstance(key, int):
            continue
        if depth == 0 and key == "algo":
            section = find(tree["algo_name"]).section
        else:
            section = child_type(section, key)
    return section
