"""Messages for pydantic's errors: the key, the value found, the value wanted, the remedy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from imitate.config.algorithms import subtree_type
from imitate.config.section import Section, child_type
from imitate.errors import nearest

Keys = list[int | str]

WANTED = {
    "bool_type": "true or false",
    "float_type": "a number",
    "finite_number": "a finite number",
    "greater_than": "a number greater than {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "int_type": "an integer",
    "less_than": "a number less than {lt}",
    "less_than_equal": "a number of at most {le}",
    "literal_error": "{expected}",
    "model_type": "an object {{...}}",
    "string_too_short": "a text that is not empty",
    "string_type": "a text",
    "too_short": "a list that is not empty",
    "tuple_type": "a list",
}
"""Description of the wanted value, in JSON's terms, for each of pydantic's kinds of errors."""


def problem_lines(error: ValidationError, root: type[Section], tree: dict[str, Any]) -> list[str]:
    """Describe the problems, one line each.

    Args:
        error: problems that pydantic found in ``tree``.
        root: the type that checked ``tree``.
        tree: the plain JSON tree.
    """
    plain: list[str] = []
    mistyped: dict[str, list[str]] = {}
    endings: dict[str, tuple[str, str]] = {}
    for detail in error.errors(include_url=False):
        keys = _real_keys(detail["loc"], tree)
        path = ".".join(str(key) for key in keys)
        if detail["type"] not in WANTED and detail["type"] != "string_pattern_mismatch":
            plain.append(_plain_problem(detail, keys, root, tree))
            continue
        wanted = _wanted(detail)
        if wanted not in mistyped.setdefault(path, []):
            mistyped[path].append(wanted)
        endings[path] = (_as_json(detail["input"]), _hint(detail, _field_at(root, keys, tree)))
    typed = [
        f"{path}: got {endings[path][0]}, wanted {' or '.join(texts)}{endings[path][1]}"
        for path, texts in mistyped.items()
    ]
    return plain + typed


def _real_keys(loc: Sequence[int | str], tree: Any) -> Keys:
    """Return ``loc`` without the names of union branches that pydantic inserts."""
    keys: Keys = []
    node = tree
    for depth, key in enumerate(loc):
        in_list = isinstance(node, list | tuple) and isinstance(key, int) and key < len(node)
        in_object = isinstance(node, dict) and key in node
        missing = isinstance(node, dict | list | tuple) and depth == len(loc) - 1
        if in_list or in_object:
            node = node[key]
        if in_list or in_object or missing:
            keys.append(key)
    return keys


def _plain_problem(detail: ErrorDetails, keys: Keys, root: type[Section], tree: Any) -> str:
    """Describe a problem that does not concern the type or the range of a single value."""
    path = ".".join(str(key) for key in keys)
    if detail["type"] == "conflict":
        return detail["msg"]
    if detail["type"] == "extra_forbidden":
        section = _section_at(root, keys[:-1], tree)
        return f"{path}: unknown key, {nearest(str(keys[-1]), section.model_fields)}"
    if detail["type"] == "missing":
        return f"{path}: is missing{_hint(detail, _field_at(root, keys, tree))}"
    return f"{path}: {detail['msg'].removeprefix('Value error, ')}"


def _wanted(detail: ErrorDetails) -> str:
    if detail["type"] == "string_pattern_mismatch":
        return "another text"
    return WANTED[detail["type"]].format(**detail.get("ctx", {}))


def _hint(detail: ErrorDetails, field: FieldInfo | None) -> str:
    """Describe further values that the key allows, and its meaning."""
    if field is None:
        return ""
    text = " or null" if type(None) in get_args(field.annotation) else ""
    if detail["type"] == "literal_error" and isinstance(detail["input"], str):
        expected = detail["ctx"]["expected"].replace(" or ", ", ").split(", ")
        near = nearest(detail["input"], [name.strip("'") for name in expected])
        text += f", {near}" if near.startswith("did you") else ""
    return text + (f" ({field.description.rstrip('.')})" if field.description else "")


def _as_json(value: object) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 80 else text[:77] + "..."


def _section_at(root: type[Section], keys: Keys, tree: Any) -> type[Section]:
    section, node = root, tree
    for depth, key in enumerate(keys):
        try:
            node = node[key]
        except (KeyError, IndexError, TypeError):
            node = None
        if isinstance(key, str):
            own = subtree_type(tree["algo_name"], key) if depth == 0 else None
            section = own or child_type(section, key, node) or Section
    return section


def _field_at(root: type[Section], keys: Keys, tree: Any) -> FieldInfo | None:
    if not keys or not isinstance(keys[-1], str):
        return None
    return _section_at(root, keys[:-1], tree).model_fields.get(keys[-1])
