"""JSON schema of a configuration for editors, and a table of its keys for readers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import Field, create_model

from imitate.config.algorithms import find
from imitate.config.config import Config
from imitate.config.observation import ObservationConfig
from imitate.config.section import OpenSection, Section, SectionChoice


def json_schema(algo_name: str) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a configuration of the algorithm."""
    section = find(algo_name).section
    name: Any = Literal[algo_name]
    fields: dict[str, Any] = {"algo_name": (name, ...), "algo": (section, section())}
    observed = section.observations or ObservationConfig
    told = Config.model_fields["observation"].description
    fields["observation"] = (observed, Field(observed(), description=told))
    model = create_model("Config", __base__=Config, **fields)
    schema: dict[str, Any] = _without_noise(model.model_json_schema())
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["description"] = f"Configuration of the algorithm '{algo_name}'."
    schema["properties"]["$schema"] = {"type": "string", "description": "This file."}
    return schema


def schema_text(algo_name: str) -> str:
    """Return the text of ``configs/schema/<algo_name>.json``."""
    return json.dumps(json_schema(algo_name), indent=2) + "\n"


def _without_noise(node: Any) -> Any:
    """Remove generated titles, and defaults of whole objects, which repeat the defaults of their keys."""
    if isinstance(node, list):
        return [_without_noise(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _without_noise(value)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str))
        and not (key == "default" and isinstance(value, dict))
    }


class Key(NamedTuple):
    """One row of the table of keys."""

    path: str
    kind: str
    default: str
    meaning: str


def keys(section: type[Section] | Section, prefix: str) -> Iterator[Key]:
    """Yield every key of a section and of its subsections, in order.

    Args:
        section: a type; or an instance, whose values are used as defaults, including the keys of its entries.
        prefix: dotted key of the section itself.
    """
    if isinstance(section, Section):
        yield from _keys(type(section), prefix, section, with_entries=True)
    else:
        yield from _keys(section, prefix, None)


def _keys(
    section: type[Section], prefix: str, values: Section | None, *, with_entries: bool = False
) -> Iterator[Key]:
    for name, field in section.model_fields.items():
        path = f"{prefix}.{name}" if prefix else name
        default = field.get_default(call_default_factory=True) if values is None else values[name]
        inner = field.annotation
        if isinstance(default, Section) and type(default) is not OpenSection:
            # The value may have a subclass of the declared type, such as the section of its kind.
            inner = type(default)
        wanted = kind(inner) + _range(field.metadata)
        meaning = field.description or ""
        if isinstance(inner, type) and issubclass(inner, Section) and inner is not OpenSection:
            yield from _keys(inner, path, default, with_entries=with_entries)
        elif field.is_required() and values is None:
            yield Key(path, wanted, "required", meaning)
        else:
            yield Key(path, wanted, _text(default), meaning)
    if values is not None and with_entries:
        yield from _keys_of_entries(section, prefix, values)
    entry = section.entry_type
    if entry is not None:
        kind_of_entry = entry.section_of(None) if isinstance(entry, SectionChoice) else entry
        yield from _keys(kind_of_entry, f"{prefix}.<name>", None)


def _keys_of_entries(section: type[Section], prefix: str, values: Section) -> Iterator[Key]:
    meaning = (section.__doc__ or "").partition("\n")[0]
    for name, value in values.items():
        if name in section.model_fields:
            continue
        if isinstance(value, Section) and type(value) is not OpenSection:
            yield from _keys(type(value), f"{prefix}.{name}", value, with_entries=True)
        else:
            yield Key(f"{prefix}.{name}", "", _text(value), meaning)


def kind(annotation: Any) -> str:
    """Describe a type in JSON's terms."""
    if annotation in _KINDS:
        return _KINDS[annotation]
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in args)
    if origin is tuple:
        return f"list of {kind(args[0])}"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, Section)):
        return "object"
    if hasattr(annotation, "__metadata__"):  # Annotated
        return kind(args[0]) + _range(annotation.__metadata__)
    return " or ".join(kind(arg) for arg in args)


def _range(metadata: Iterable[object]) -> str:
    """Describe limits, for example `` > 0``; other metadata are left out."""
    signs = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
    limits = [(sign, getattr(m, name, None)) for m in metadata for name, sign in signs]
    return "".join(f" {sign} {limit}" for sign, limit in limits if limit is not None)


_KINDS: dict[Any, str] = {
    bool: "true/false",
    int: "integer",
    float: "number",
    str: "text",
    type(None): "null",
    Any: "any",
}


def _text(value: object) -> str:
    if isinstance(value, Section):
        value = value.to_dict()
    return f"`{json.dumps(value)}`"


def table(section: type[Section], prefix: str) -> str:
    """Return a Markdown table of the keys of a section."""
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{k.path}` | {k.kind} | {k.default} | {k.meaning} |" for k in keys(section, prefix)
    ]
    return "\n".join(rows) + "\n"
