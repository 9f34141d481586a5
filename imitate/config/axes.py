"""Configurations with lists of values to try, expanded into one configuration per combination."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from imitate.config.algorithms import subtree_type
from imitate.config.config import Config, parse_override, put
from imitate.config.loading import Source, load_config, read_tree
from imitate.config.section import OpenSection, Section, child_type
from imitate.errors import ConfigError

logger = logging.getLogger(__name__)

Axes = dict[str, list[Any]]
"""Lists of values to try, by dotted key. Under ``a,b``, two keys that vary together, each value is a list of two."""
LOAD_NEXT_OBS = "hdf5_load_next_obs"
CONFIG = "config"
"""Name of the axis over configurations, if several were given."""


@dataclass(frozen=True)
class Combination:
    """One combination of values.

    Attributes:
        name: the values as text, also used as the name of a folder.
        config: the configuration with these values.
        keys: dotted keys of the values; for an object, the dotted keys of the values in it.
        source: short name of the configuration; None if only one was given.
    """

    name: str
    config: Config
    keys: tuple[str, ...]
    source: str | None = None

    @property
    def values(self) -> dict[str, Any]:
        """Values by dotted key, and the configuration's short name as ``config`` if several were given."""
        tree = self.config.to_dict()
        source = {} if self.source is None else {CONFIG: self.source}
        return source | {key: _at(tree, key) for key in self.keys}


def expand(source: Source, grid: Iterable[str] = ()) -> tuple[dict[str, Any], Axes]:
    """Separate a configuration with lists of alternatives into a tree without these keys, and the alternatives.

    A list is a list of alternatives if its key accepts each item but not the list itself, such as ``"seed": [1, 2, 3]``
    or ``"actor_layer_dims": [[256], [512, 512]]``.

    Args:
        source: see :func:`imitate.config.load_config`.
        grid: further alternatives, such as ``"train.seed=[1, 2, 3]"`` or ``"a,b=[[1, 2], [3, 4]]"`` for keys that vary
            together.

    Raises:
        ConfigError: a key is unknown, or its list of values to try is empty.
    """
    tree = read_tree(source)
    algos = tree.get("algo_name", "bc")
    algo_name = str(algos[0] if isinstance(algos, list) and algos else algos)
    axes: Axes = dict(_lists(Config, tree, "", algo_name))
    for text in grid:
        path, values = parse_override(text, Config, algo_name)
        axes[path] = _checked(text, path, values)
    for path, values in axes.items():
        if not values:
            raise ConfigError(f"{path}: the list of values to try is empty")
        for key, value in _chosen(path, values[0]).items():
            put(tree, key, value)
    return tree | {"algo_name": algo_name}, axes


def expand_all(
    sources: Sequence[Source], grid: Iterable[str] = (), overrides: Iterable[str] = ()
) -> tuple[list[Combination], Axes]:
    """Expand configurations into all combinations of their own alternatives and of the alternatives in ``grid``.

    Returns:
        every combination, and the alternatives; with several configurations, their short names are the first axis,
        ``config``.

    Raises:
        ConfigError: a key is unknown, its list of values is empty, or a combination cannot work.
    """
    if len(sources) == 1:
        tree, axes = expand(sources[0], grid)
        return combinations(tree, axes, overrides=overrides), axes
    names, grid = _short_sources(sources), list(grid)
    made: list[Combination] = []
    axes = {CONFIG: [*names]}
    for name, source in zip(names, sources, strict=True):
        try:
            tree, own = expand(source, grid)
            made += [
                replace(one, name=",".join(filter(None, (name, one.name))), source=name)
                for one in combinations(tree, own, alone="", overrides=overrides)
            ]
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
        axes |= own
    return made, axes


def combinations(
    tree: Mapping[str, Any], axes: Axes, alone: str = "only", overrides: Iterable[str] = ()
) -> list[Combination]:
    """Return each combination of values; the last axis changes fastest.

    If a combination changes ``algo_name``, the section ``algo`` of the tree, which is for another algorithm, is
    dropped.

    Args:
        tree, axes: results of :func:`expand`.
        alone: name of the only combination if there is nothing to try.
        overrides: ``"a.b=value"`` overrides that apply to all combinations.

    Raises:
        ConfigError: a combination cannot work; the message names it.
    """
    own, made, changed = tree.get("algo_name", "bc"), [], set[str]()
    overrides = list(overrides)
    for values in product(*axes.values()):
        chosen: dict[str, Any] = {}
        for path, value in zip(axes, values, strict=True):
            chosen |= _chosen(path, value)
        leaves = dict(leaves_of(chosen))
        name = ",".join(
            f"{short_name(path, leaves)}={_word(leaf)}" for path, leaf in leaves.items()
        )
        base = tree
        if chosen.get("algo_name", own) != own:
            changed.add(str(chosen["algo_name"]))
            base = _without_algorithm(tree) | {"algo_name": chosen["algo_name"]}
        try:
            config = load_config(base, overrides).with_overrides(chosen)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}" if name else str(error)) from None
        made.append(Combination(name or alone, config, tuple(leaves)))
    if changed and _without_algorithm(tree) != {k: v for k, v in tree.items() if k != "algo_name"}:
        names = ", ".join(sorted(changed))
        logger.warning("the settings of %s are left out for %s", own, names)
    if len({one.name for one in made}) < len(made):
        raise ConfigError("a value occurs twice in a list of values to try: remove one of them")
    return made


def _without_algorithm(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree without the keys that depend on its algorithm: algo_name, algo, train.hdf5_load_next_obs."""
    rest = {key: value for key, value in tree.items() if key not in ("algo", "algo_name")}
    train = rest.get("train")
    if isinstance(train, dict):
        rest["train"] = {key: value for key, value in train.items() if key != LOAD_NEXT_OBS}
    return rest


def _checked(text: str, path: str, values: object) -> list[Any]:
    """Return the checked values of an option ``--grid``.

    Raises:
        ConfigError: the value is not a list, or for keys that vary together, an item is not a list of one value per
            key.
    """
    if not isinstance(values, list):
        raise ConfigError(f"--grid {text}: wanted a list of values, such as train.seed=[1,2,3]")
    number = len(path.split(","))
    if number > 1 and not all(isinstance(v, list) and len(v) == number for v in values):
        raise ConfigError(
            f"--grid {text}: {number} keys vary together, so each value is a list of {number}, such as "
            f"'{path}=[{[1, 2, 3, 4][:number]},{[5, 6, 7, 8][:number]}]'"
        )
    return values


def _chosen(path: str, value: Any) -> dict[str, Any]:
    """Return the value of each key that one entry of an axis sets, by dotted key."""
    keys = [key.strip() for key in path.split(",")]
    return dict(zip(keys, value, strict=True)) if len(keys) > 1 else {path: value}


def leaves_of(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of each leaf of a tree."""
    for key, value in tree.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, dict) and value:
            yield from leaves_of(value, here)
        else:
            yield here, value


def _short_sources(sources: Sequence[Source]) -> list[str]:
    """Return a name for each configuration: the fewest last parts of its path that make it unique."""
    parts = [
        Path(str(source).removesuffix(".json")).parts
        if isinstance(source, str | Path)
        else (str(read_tree(source).get("algo_name", "bc")),)
        for source in sources
    ]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["_".join(part.strip("/") for part in one[-count:]) for one in parts]
        if len(set(names)) == len(names):
            return [_word(name) for name in names]
    raise ConfigError("one configuration was given twice: remove one of them")


def _at(tree: Any, path: str) -> Any:
    for key in path.split("."):
        tree = tree[int(key)] if isinstance(tree, list) else tree[key]
    return tree


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
    """Return true if the key accepts each value but not the whole list; false for ``data``, which may be a list."""
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
