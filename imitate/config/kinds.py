"""Kinds of a component that a configuration names by the key ``type``, each with a section of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

from imitate.config.plugins import installed_points
from imitate.config.section import Section
from imitate.errors import ConfigError, nearest

T = TypeVar("T")
SectionT = TypeVar("SectionT", bound=Section)
Kind = TypeVar("Kind", bound=type[Any])


class Kinds(Generic[T, SectionT]):
    """Classes of a component and their sections, by name.

    A kind is found by its name: registered already, in the module ``<package>.<name>``, or an entry point of another
    package in ``group``.

    Args:
        key: dotted key of the component, for messages.
        package: package of our own kinds.
        group: entry points of other packages.
        section: base of the sections; its default of ``type`` is what a section without one means.
        own: names of our own kinds, for messages.
    """

    def __init__(
        self, key: str, package: str, group: str, section: type[SectionT], own: tuple[str, ...]
    ) -> None:
        self._key, self._package, self._group = key, package, group
        self._section, self._own = section, own
        self._kinds: dict[str, tuple[type[T], type[SectionT]]] = {}

    def register(self, name: str, section: type[SectionT]) -> Callable[[Kind], Kind]:
        """Register the class of a kind; registering a name twice raises ConfigError."""

        def decorator(kind: Kind) -> Kind:
            if name in self._kinds:
                raise ConfigError(
                    f"{self._key}: type '{name}' is already registered: choose another name"
                )
            self._kinds[name] = (kind, section)
            return kind

        return decorator

    def find(self, name: str) -> tuple[type[T], type[SectionT]]:
        """Class and section of a kind. Raises ConfigError with the nearest name for an unknown one."""
        if name not in self._kinds:
            module = f"{self._package}.{name}"
            if re.fullmatch(r"[A-Za-z]\w*", name) and find_spec(module) is not None:
                import_module(module)
            for point in installed_points(self._group, name):
                point.load()
        if name not in self._kinds:
            installed = (point.name for point in installed_points(self._group))
            known = sorted({*self._kinds, *self._own, *installed})
            raise ConfigError(f"{self._key}: no type '{name}'; {nearest(name, known)}")
        return self._kinds[name]

    def validated(self, value: Any, handler: Callable[[Any], SectionT]) -> SectionT:
        """A value of the configuration, checked by the section of its type; for pydantic's ``WrapValidator``."""
        tree = value.to_dict() if isinstance(value, Section) else value
        default = self._section.model_fields["type"].default
        name = tree.get("type", default) if isinstance(tree, Mapping) else None
        if not isinstance(name, str):
            return handler(value)  # pydantic says what is missing
        try:
            section = self.find(name)[1]
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return section.model_validate(tree)
