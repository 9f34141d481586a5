"""Classes and arguments named in a configuration, looked up in explicit tables."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from imitate.errors import ConfigError, nearest

T = TypeVar("T")


def chosen(table: Mapping[str, T], name: str, key: str) -> T:
    """The entry of that name. Raises ConfigError with the nearest name for an unknown one."""
    if name not in table:
        raise ConfigError(f"{key}: unknown '{name}'; {nearest(name, table)}")
    return table[name]


def arguments(kind: Any) -> list[str]:
    """Names of the constructor's arguments that a configuration may give."""
    given = {"self", "input_shape", "input_channel"}
    return [name for name in inspect.signature(kind.__init__).parameters if name not in given]


def relevant(
    table: Mapping[str, Any], kind: Any, options: Mapping[str, Any] | None, key: str
) -> dict[str, Any]:
    """The options that ``kind`` takes.

    Options of the table's other classes are left out, so that switching the class does not need other
    options; one that no class has raises ConfigError.
    """
    known = {name for other in table.values() for name in arguments(other)}
    for name in options or {}:
        if name not in known:
            raise ConfigError(f"{key}: unknown key '{name}'; {nearest(name, known)}")
    own = arguments(kind)
    return {name: value for name, value in (options or {}).items() if name in own}
