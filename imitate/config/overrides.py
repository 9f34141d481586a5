"""Overrides of single values of a tree: ``--set a.b=value``."""

from __future__ import annotations

import json
from typing import Any, get_args

from imitate.config.algorithms import subtree_type
from imitate.config.section import Section, child_type
from imitate.errors import ConfigError


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path; missing objects on the way are created.

    A number in the path is an index of a list.
    """
    node: Any = tree
    keys = path.split(".")
    if not all(keys):
        raise ConfigError(f"'{path}': wanted a dotted key such as train.batch_size")
    for depth, key in enumerate(keys):
        last = depth == len(keys) - 1
        here = ".".join(keys[:depth])
        place = _place(node, key, here, path)
        if last:
            node[place] = value
        elif isinstance(node, list):
            node = node[place]
        else:
            if node.get(place) is None:
                node[place] = {}
            node = node[place]


def _place(node: object, key: str, here: str, path: str) -> Any:
    if isinstance(node, dict):
        return key
    if isinstance(node, list):
        if key.isdigit() and int(key) < len(node):
            return int(key)
        raise ConfigError(
            f"{path}: {here} is a list of {len(node)}: wanted a place in it, from 0, got '{key}'"
        )
    raise ConfigError(f"{path}: {here} is {node!r}, which has no key '{key}'")


def parse_override(text: str, root: type[Section], algo_name: str | None) -> tuple[str, Any]:
    """Parse ``a.b=value`` into path and value.

    The value is parsed as JSON, or used as a plain string if that fails. If the key is a string, a number stays a
    string.
    """
    path, equals, raw = text.partition("=")
    path = path.strip()
    if not equals or not path:
        raise ConfigError(f"'{text}': wanted key=value, such as train.batch_size=256")
    try:
        value = json.loads(raw)
    except ValueError:
        return path, raw
    if isinstance(value, bool | int | float) and _wants_text(path, root, algo_name):
        return path, raw
    return path, value


def _wants_text(path: str, root: type[Section], algo_name: str | None) -> bool:
    section: type[Section] | None = root
    *sections, last = path.split(".")
    for depth, key in enumerate(sections):
        if section is None:
            return False
        own = subtree_type(algo_name, key) if depth == 0 and algo_name else None
        if own is not None or not key.isdigit():
            section = own or child_type(section, key)
    field = section.model_fields.get(last) if section else None
    return field is not None and str in {field.annotation, *get_args(field.annotation)}
