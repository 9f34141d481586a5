"""Implementations (kinds) of a component: the key ``type`` selects one, and each kind has its own section."""

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_wrap_validator_function

from imitate.config.section import Section, SectionChoice
from imitate.errors import ConfigError, nearest
from imitate.system.extras import installed_points

T = TypeVar("T")
SectionT = TypeVar("SectionT", bound=Section)
Kind = TypeVar("Kind", bound=type[Any])


class Kinds(SectionChoice, Generic[T, SectionT]):
    """Implementations (kinds) of a component: the class and the section of each, by name.

    ``Annotated[SectionT, KINDS]`` is the type of a key whose value is checked by the section of its kind.

    A kind is searched by name among the registered kinds, then as the module ``<package>.<name>``, then among the entry
    points of other packages in ``group``.

    Args:
        key: dotted key of the component, for messages.
        package: package with the kinds of imitate.
        group: group of entry points of other packages.
        section: base class of the sections; its default of ``type`` is used if a section names no type.
        own: names of the kinds of imitate, for messages.
    """

    def __init__(
        self, key: str, package: str, group: str, section: type[SectionT], own: tuple[str, ...]
    ) -> None:
        self._key, self._package, self._group = key, package, group
        self._section, self.own = section, own
        self._kinds: dict[str, tuple[type[T], type[SectionT]]] = {}

    def register(self, name: str, section: type[SectionT]) -> Callable[[Kind], Kind]:
        """Return a decorator that registers a class under ``name``; it raises ConfigError if the name is taken."""

        def decorator(kind: Kind) -> Kind:
            if name in self._kinds:
                raise ConfigError(
                    f"{self._key}: type '{name}' is already registered: choose another name"
                )
            self._kinds[name] = (kind, section)
            return kind

        return decorator

    def find(self, name: str) -> tuple[type[T], type[SectionT]]:
        """Return the class and section of a kind. For an unknown kind, raise ConfigError with the nearest name."""
        if name not in self._kinds:
            module = f"{self._package}.{name}"
            if re.fullmatch(r"[A-Za-z]\w*", name) and find_spec(module) is not None:
                import_module(module)
            for point in installed_points(self._group, name):
                self._load(point)
        if name not in self._kinds:
            installed = (point.name for point in installed_points(self._group))
            known = sorted({*self._kinds, *self.own, *installed})
            raise ConfigError(f"{self._key}: no type '{name}'; {nearest(name, known)}")
        return self._kinds[name]

    def _load(self, point: EntryPoint) -> None:
        try:
            point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"{self._key}: '{point.name}' is {point.value}, which cannot be loaded ({error}): repair or reinstall "
                "that package"
            ) from error
        if point.name not in self._kinds:
            raise ConfigError(
                f"{self._key}: '{point.name}' is {point.value}, which registers no type of this name: repair that "
                "package"
            )

    def section_of(self, tree: object) -> type[SectionT]:
        """Return the type of the section for these values; the base class if ``type`` is missing or unknown."""
        try:
            return self._named(tree) or self._section
        except ConfigError:
            return self._section

    def _named(self, tree: object) -> type[SectionT] | None:
        default = self._section.model_fields["type"].default
        name = tree.get("type", default) if isinstance(tree, Mapping | Section) else default
        return self.find(name)[1] if isinstance(name, str) else None

    def __get_pydantic_core_schema__(
        self, source: type[SectionT], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the pydantic schema that checks a value with the section of its kind."""
        return no_info_wrap_validator_function(self._validated, handler(source))

    def _validated(self, value: object, handler: Callable[[object], SectionT]) -> SectionT:
        tree = value.to_dict() if isinstance(value, Section) else value
        try:
            section = self._named(tree) if isinstance(tree, Mapping) else None
        except ConfigError as error:
            raise ValueError(str(error).removeprefix(f"{self._key}: ")) from error
        return handler(value) if section is None else section.model_validate(tree)
