"""Lookup of classes and arguments that a configuration names, in explicit tables."""

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from imitate.errors import ConfigError, nearest
from imitate.system.extras import installed_points

T = TypeVar("T")

_BUILDERS = {
    *("self", "input_shape", "input_channel"),
    *("language_dim", "default_norm", "load_pretrained"),
}
"""Constructor arguments that the builder of a network sets, so that a configuration cannot set them."""


def chosen(table: Mapping[str, T], name: str, key: str) -> T:
    """Return the entry ``name`` of a table. Raises ConfigError with the nearest name if there is no such entry."""
    if name not in table:
        raise ConfigError(f"{key}: unknown '{name}'; {nearest(name, table)}")
    return table[name]


def chosen_or_installed(table: Mapping[str, Any], name: str, key: str, group: str) -> Any:
    """Return the entry ``name`` of a table, or the entry point of that name in another package.

    Raises:
        ConfigError: neither exists, or the entry point cannot be loaded.
    """
    if name in table:
        return table[name]
    installed = {point.name: point for point in installed_points(group)}
    if name not in installed:
        known = [*table, *installed]
        raise ConfigError(
            f"{key}: unknown '{name}'; {nearest(name, known)} (known: {', '.join(known)}; other packages may add "
            f"more by entry points in the group '{group}')"
        )
    try:
        found = installed[name].load()
        if not callable(found):
            raise ImportError("it is neither a class nor a function")
        return found
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{key}: '{name}' is {installed[name].value}, which cannot be loaded ({error}); repair or reinstall that "
            "package"
        ) from error


def arguments(kind: Any) -> list[str]:
    """Return the names of the constructor's arguments that a configuration may set."""
    return [name for name in inspect.signature(kind).parameters if name not in _BUILDERS]


def supplied(kind: Any, **values: Any) -> dict[str, Any]:
    """Return the keyword arguments ``values`` for which the constructor of ``kind`` has parameters."""
    wanted = inspect.signature(kind).parameters
    return {name: value for name, value in values.items() if name in wanted}


def relevant(
    table: Mapping[str, Any], kind: Any, options: Mapping[str, Any] | None, key: str
) -> dict[str, Any]:
    """Return the options that the class ``kind`` accepts.

    Options of other classes in the table are ignored, so that the class can be changed without changing the options.
    An option that no class has raises ConfigError.
    """
    known = {name for other in table.values() for name in arguments(other)}
    for name in options or {}:
        if name not in known:
            raise ConfigError(f"{key}: unknown key '{name}'; {nearest(name, known)}")
    own = arguments(kind)
    return {name: value for name, value in (options or {}).items() if name in own}
