"""The whole configuration (robomimic's JSON tree, typed and frozen), overrides of single values, and error messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import (
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    WrapValidator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from imitate.config.algorithms import AlgoSection, find, subtree_type
from imitate.config.base_config import BaseConfig
from imitate.config.key_hints import SYNONYMS, keys_that_mean, leaves
from imitate.config.observation import ObservationConfig, Observations
from imitate.config.schedule import misplaced, seal
from imitate.config.section import Section, child_type, merged
from imitate.errors import ConfigError, nearest

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
"""Description of the wanted value in JSON's terms, by pydantic's type of error."""


def problem_lines(error: ValidationError, root: type[Section], tree: dict[str, Any]) -> list[str]:
    """Describe the problems, one line each.

    Args:
        error: problems that pydantic found in ``tree``.
        root: pydantic model that checked ``tree``.
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
    """Return pydantic's location ``loc`` of an error without the inserted names of union branches."""
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
        return f"{path}: unknown key, {_instead(path, _section_at(root, keys[:-1], tree), tree)}"
    if detail["type"] == "missing":
        return f"{path}: is missing{_hint(detail, _field_at(root, keys, tree))}"
    return f"{path}: {detail['msg'].removeprefix('Value error, ')}"


DEEPEST = 2
"""Largest number of dots in an unknown key that is also searched in other sections; components have deeper keys."""


def _instead(path: str, section: type[Section], tree: Any) -> str:
    """Name the key that an unknown key probably means: a synonym from another toolkit, a similar or misplaced key."""
    last = path.rpartition(".")[2]
    near = nearest(last, section.model_fields)
    if last not in SYNONYMS and (near.startswith("did you") or path.count(".") > DEEPEST):
        return near
    word = next(iter(get_close_matches(last, SYNONYMS, n=1, cutoff=0.8)), path)
    meant = keys_that_mean(word, keys_of(tree.get("algo_name")))
    return f"did you mean {' or '.join(map(repr, meant))}?" if meant else near


@cache
def keys_of(algo_name: str | None) -> tuple[str, ...]:
    """Return the dotted keys of all sections, including the section ``algo`` if the algorithm is known."""
    values = {} if algo_name is None else {"algo_name": algo_name}
    try:
        config = Config.model_validate(values)
    except (ConfigError, ValidationError):
        config = Config.model_construct(algo_name="")
    return tuple(leaves(config.to_dict()))


def _wanted(detail: ErrorDetails) -> str:
    if detail["type"] == "string_pattern_mismatch":
        return "another text"
    return WANTED[detail["type"]].format(**detail.get("ctx", {}))


def _hint(detail: ErrorDetails, field: FieldInfo | None) -> str:
    """Return the end of an error message: null if the key allows it, the nearest choice, and the key's description."""
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
            f"{path}: {here} is a list of {len(node)} items: wanted an index below {len(node)}, got '{key}'"
        )
    raise ConfigError(
        f"{path}: {here} is {node!r}, which is not an object with keys: remove '.{key}' from the path"
    )


def parse_override(text: str, root: type[Section], algo_name: str | None) -> tuple[str, Any]:
    """Parse ``a.b=value`` into path and value.

    The value is parsed as JSON, or used as a plain string if it is not JSON. If the key takes only strings, a number is
    kept as a string.
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


def _as_the_algorithm_wants(
    value: object, handler: Callable[[object], AlgoSection], info: ValidationInfo
) -> AlgoSection:
    name = info.data.get("algo_name")
    if name is None:  # pydantic reports an invalid name
        return handler({})
    return find(name).section.model_validate(value)


def _observed_as_the_algorithm_wants(
    value: object, handler: Callable[[object], Observations], info: ValidationInfo
) -> Observations:
    name = info.data.get("algo_name")
    observed = None if name is None else find(name).section.observations
    return (observed or ObservationConfig).model_validate(value)


class Config(BaseConfig):
    """Checked configuration, made by `load_config`. It is never changed, only copied with other values."""

    algo: Annotated[AlgoSection, WrapValidator(_as_the_algorithm_wants)] = Field(
        AlgoSection(), validate_default=True, description="Settings of the algorithm."
    )
    observation: Annotated[Observations, WrapValidator(_observed_as_the_algorithm_wants)] = Field(
        ObservationConfig(), description="Observations and their encoders."
    )

    _folder: Path | None = PrivateAttr(None)

    @model_validator(mode="before")
    @classmethod
    def _lay_over_the_algorithms_defaults(cls, data: object) -> object:
        if isinstance(data, Mapping) and isinstance(data.get("algo_name"), str):
            return merged(find(data["algo_name"]).section.tree_defaults, data)
        return data

    @model_validator(mode="after")
    def _no_conflicts(self) -> Config:
        problems = misplaced(self) + self.algo.conflicts(self) + self.algo.auxiliary_conflicts(self)
        if problems:
            raise PydanticCustomError("conflict", "{text}", {"text": "\n".join(problems)})
        seal(self.algo, "algo")
        return self

    @classmethod
    def build(cls, tree: dict[str, Any], *, label: str = "", folder: Path | None = None) -> Config:
        """Check a plain tree and make a configuration of it.

        Args:
            tree: tree in the current form, which `imitate.config.loading.migrate` returns.
            label: name of the file, written before each problem.
            folder: folder of the file, for relative paths of data.

        Raises:
            ConfigError: one line per problem.
        """
        prefix = f"{label}: " if label else ""
        try:
            config = cls.model_validate(tree)
        except ValidationError as error:
            lines = problem_lines(error, cls, tree)
            raise ConfigError("\n".join(prefix + line for line in lines)) from None
        except ConfigError as error:
            raise ConfigError(f"{prefix}{error}") from None
        config._folder = folder
        return config

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.to_json())

    @property
    def folder(self) -> Path | None:
        """Folder of the JSON file from which the configuration was read; None if it was not a file."""
        return self._folder

    def to_json(self) -> str:
        """Return the whole tree as JSON text; `load_config` turns it into an equal object."""
        return json.dumps(self.to_dict(), indent=2)

    def with_overrides(self, values: Mapping[str, Any]) -> Config:
        """Return a copy with other values, checked like any other configuration.

        Args:
            values: values by dotted key, such as ``{"train.batch_size": 10}``. An object replaces the whole subtree.
        """
        tree = self.to_dict()
        for path, value in values.items():
            put(tree, path, deepcopy(value))
        return Config.build(tree, folder=self._folder)
