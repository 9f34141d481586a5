"""The write-once registry of algorithms, filled on first use."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any

from pydantic import Field

from imitate.config.algo_section import AlgoSection
from imitate.config.observation import ObservationConfig
from imitate.config.optimizer import OptimizerConfigs
from imitate.config.plugins import installed_points
from imitate.config.section import OpenSection, Section
from imitate.errors import ConfigError, nearest

PACKAGE = "imitate.algo"
ENTRY_POINTS = "imitate.algos"


class OpenAlgorithm(AlgoSection, OpenSection):
    """The subtree ``algo`` of an algorithm without a section of its own: any key, and optimizers as everywhere."""

    optim_params: OptimizerConfigs = Field(
        OptimizerConfigs(), description="Optimizers, by the name of the network."
    )

    def _words_for_missing(self, key: str) -> str:
        return (
            f"algo.{key}: is read by the algorithm, but not set, and the algorithm is registered without a section, "
            f"which would hold a default: set algo.{key} in the configuration, read it with "
            f".get('{key}', a default), or register the algorithm with section=... (docs/own_algorithm.md)"
        )


@dataclass(frozen=True)
class AlgorithmEntry:
    """Registered section and class of an algorithm."""

    section: type[AlgoSection]
    """Type of the subtree ``algo``."""
    to_class: Callable[[Any], tuple[type, dict[str, Any]]]
    """Function from the subtree ``algo`` to the class and its extra arguments."""


_FILES = {"cal_ql": "cql"}
"""Algorithms that stand in the file of another one: variants of its paper's method."""

_entries: dict[str, AlgorithmEntry] = {}


def register(
    algo_name: str,
    section: type[AlgoSection] | None,
    to_class: Callable[[Any], tuple[type, dict[str, Any]]],
) -> None:
    """Enter an algorithm; a second one of the same name is refused.

    Args:
        algo_name: the value of the key ``algo_name``.
        section: type of the subtree ``algo``; None: :class:`OpenAlgorithm`.
        to_class: picks the class from the subtree ``algo``.

    Raises:
        ConfigError: the name is taken, or the section does not derive from :class:`AlgoSection`.
    """
    if section is not None and not issubclass(section, AlgoSection):
        raise ConfigError(
            f"algorithm '{algo_name}': its section {section.__name__} does not derive from imitate.config.AlgoSection"
        )
    if algo_name in _entries:
        raise ConfigError(
            f"algorithm '{algo_name}' is already registered by "
            f"{_entries[algo_name].to_class.__module__}: "
            "choose another name"
        )
    _entries[algo_name] = AlgorithmEntry(section or OpenAlgorithm, to_class)


def unregister(algo_name: str) -> None:
    """Remove an entry, as a notebook does before it defines the algorithm again.

    Raises:
        ConfigError: no algorithm of this name is registered.
    """
    if algo_name not in _entries:
        raise ConfigError(
            f"algorithm '{algo_name}' is not registered; {nearest(algo_name, _entries)}"
        )
    del _entries[algo_name]


def find(algo_name: str) -> AlgorithmEntry:
    """Return the entry of the algorithm of this name.

    On first use ``imitate.algo.<algo_name>`` is imported, or the entry point of that name.
    """
    module = None if algo_name in _entries else _import(algo_name)
    if algo_name in _entries:
        return _entries[algo_name]
    if module is not None:
        raise ConfigError(
            f"algo_name: the entry point '{algo_name}' of the group {ENTRY_POINTS} names {module}, which registers no "
            f'algorithm of that name: decorate a function there with @register_algo_factory_func("{algo_name}")'
        )
    raise ConfigError(
        f"algo_name: no algorithm '{algo_name}', {nearest(algo_name, available())}; one of another package has to be "
        "installed here"
    )


def subtree_type(algo_name: str, key: str) -> type[Section] | None:
    """Type of the subtrees ``algo`` and ``observation``, where it depends on the algorithm."""
    section = find(algo_name).section
    return {"algo": section, "observation": section.observations or ObservationConfig}.get(key)


def available() -> list[str]:
    """Names of all algorithms. Imports every module that may hold one."""
    names = {point.name for point in installed_points(ENTRY_POINTS)}
    package = find_spec(PACKAGE)
    for module in iter_modules(package.submodule_search_locations if package else []):
        with suppress(ImportError):  # a broken module must not hide the answer
            _import(module.name)
    return sorted(names | _entries.keys())


def _import(algo_name: str) -> str | None:
    """Import the module that may register the algorithm; the module that an entry point of the name stands for."""
    module = f"{PACKAGE}.{_FILES.get(algo_name, algo_name)}"
    if re.fullmatch(r"[A-Za-z]\w*", algo_name) and find_spec(module) is not None:
        import_module(module)
        return None
    loaded = None
    for point in installed_points(ENTRY_POINTS, algo_name):
        loaded = point.value
        try:
            point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"algo_name: the entry point '{algo_name}' of the group {ENTRY_POINTS}, {point.value}, cannot be "
                f"loaded: {error}: mend its module, or the entry point in its pyproject.toml"
            ) from error
    return loaded
