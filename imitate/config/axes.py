"""Configuration with lists of values to try, expanded into one configuration per combination."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from pydantic import TypeAdapter, ValidationError

from imitate.config.algorithms import subtree_type
from imitate.config.config import Config, parse_override, put
from imitate.config.loading import Source, load_config, read_tree
from imitate.config.section import OpenSection, Section, child_type
from imitate.errors import ConfigError

Axes = dict[str, list[Any]]
"""Values to try by dotted key."""


def expand(source: Source, grid: Iterable[str] = ()) -> tuple[dict[str, Any], Axes]:
    """Separate a configuration with alternatives into a tree without them and the alternatives.

    A list counts as alternatives if the key accepts each item but not the list itself: ``"seed": [1, 2, 3]``, or
    ``"actor_layer_dims": [[256], [512, 512]]``. ``meta.hp_keys`` and ``meta.hp_values`` (one list of values per key) on
    ``meta.hp_base_config_file`` mean the same; they are robomimic's keys.

    Args:
        source: see :func:`imitate.config.load_config`.
        grid: further alternatives, such as ``"train.seed=[1, 2, 3]"``.

    Raises:
        ConfigError: a key is unknown, or has no values to try.
    """
    tree = read_tree(source)
    axes: Axes = {}
    meta = tree.get("meta") or {}
    if isinstance(meta, dict) and meta.get("hp_keys"):
        tree, axes = _from_meta(tree, meta)
    algo_name = tree.get("algo_name", "bc")
    for path, values in _lists(Config, tree, "", str(algo_name)):
        axes[path] = values
    for text in grid:
        path, values = parse_override(text, Config, str(algo_name))
        if not isinstance(values, list):
            raise ConfigError(f"--grid {text}: wanted a list of values, such as train.seed=[1,2,3]")
        axes[path] = values
    for path, values in axes.items():
        if not values:
            raise ConfigError(f"{path}: the list of values to try is empty")
        put(tree, path, values[0])
    return tree, axes


def combinations(tree: Mapping[str, Any], axes: Axes) -> list[tuple[str, Config]]:
    """Return a name and a configuration for each combination of values; the last axis changes fastest.

    Raises:
        ConfigError: a combination cannot work; the message names it.
    """
    made = []
    for values in product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        name = ",".join(
            f"{short_name(path, axes)}={_word(value)}" for path, value in chosen.items()
        )
        try:
            made.append((name or "only", load_config(tree).with_overrides(chosen)))
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
    if len({name for name, _ in made}) < len(made):
        raise ConfigError("the same value occurs twice in a list of values to try: remove one")
    return made


def _from_meta(tree: dict[str, Any], meta: Mapping[str, Any]) -> tuple[dict[str, Any], Axes]:
    keys, values = list(meta["hp_keys"]), list(meta.get("hp_values") or [])
    if len(keys) != len(values) or not all(isinstance(v, list) for v in values):
        raise ConfigError(
            f"meta.hp_values: wanted one list of values for each of the {len(keys)} meta.hp_keys"
        )
    base = meta.get("hp_base_config_file")
    if base:
        return read_tree(base), dict(zip(keys, values, strict=True))
    rest = {key: value for key, value in tree.items() if key != "meta"}
    return rest, dict(zip(keys, values, strict=True))


def _lists(
    section: type[Section], tree: Mapping[str, Any], path: str, algo_name: str
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the dotted keys whose value is a list of alternatives."""
    for key, value in tree.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            own = None if path else subtree_type(algo_name, key)
            inner = own or child_type(section, key, value)
            if inner is not None and not issubclass(inner, OpenSection):
                yield from _lists(inner, value, here, algo_name)
        elif isinstance(value, list) and _are_alternatives(section, key, value):
            yield here, value


def _are_alternatives(section: type[Section], key: str, values: list[object]) -> bool:
    """Return true if the key accepts each of the values, but not their list. ``data`` may be a path or a list."""
    if key == "data" or key not in section.model_fields or _takes(section, key, values):
        return False
    return all(_takes(section, key, value) for value in values)


def _takes(section: type[Section], key: str, value: object) -> bool:
    """Return true if the value is valid for the key."""
    field = section.model_fields[key]
    try:
        TypeAdapter(field.rebuild_annotation(), config={"strict": True}).validate_python(
            _tuples(value)
        )
    except (ValidationError, ValueError):
        return False
    return True


def _tuples(value: object) -> object:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def short_name(path: str, axes: Mapping[str, object]) -> str:
    """Shorten a dotted key to the fewest last words that distinguish it from the other keys."""
    words = path.split(".")
    for count in range(1, len(words) + 1):
        tail = ".".join(words[-count:])
        if sum(other == tail or other.endswith("." + tail) for other in axes) == 1:
            return tail
    return path


def _word(value: object) -> str:
    """Convert a value to a part of a file name."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "x".join(map(_word, value)) or "none"
    text = str(value).lower() if isinstance(value, bool) or value is None else str(value)
    return "".join(c if c.isalnum() or c in "-._+" else "-" for c in text)
