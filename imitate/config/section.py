"""Base class of every typed section: frozen, checked, read by attribute or by key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError
from typing_extensions import Self

from imitate.config.schedule import (
    STORE,
    Scheduled,
    is_plain,
    is_schedule,
    parsed,
    takes_fractions,
    unread,
)
from imitate.errors import ConfigError

SCALARS = (str, int, float, bool, type(None))


class MissingKeyError(ConfigError, AttributeError):
    """Error for reading a key of a free-form section that has neither a value nor a default."""


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two trees: mappings are merged key by key; lists and scalars of ``above`` take precedence."""
    out = dict(below)
    for key, value in above.items():
        old = out.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            out[key] = merged(old, value)
        else:
            out[key] = value
    return out


class Section(BaseModel):
    """One object of the JSON tree.

    Unknown keys are refused and values are never coerced (``"10"`` is not an integer); lists become tuples. An object
    with only some keys is merged with the default of its field, so the defaults of a nested section may differ from
    those of its class. Values are read as ``section.key`` or ``section["key"]``; ``in``, ``keys``, ``values``,
    ``items`` and ``get`` work as for a dict.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )

    entry_type: ClassVar[type[Section] | SectionChoice | None] = None
    """Type of entries with user-chosen names; None if the section allows none."""

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, data: object) -> object:
        if isinstance(data, Section):
            return data if isinstance(data, cls) else data.to_dict()
        if not isinstance(data, Mapping):
            return data
        out = {key: _tuples(value) for key, value in data.items()}
        for name, field in cls.model_fields.items():
            values = out.get(name)
            if isinstance(values, Mapping):
                default = field.get_default(call_default_factory=True)
                if isinstance(default, Section):
                    out[name] = merged(default.given(), values)
        return out

    @model_validator(mode="wrap")
    @classmethod
    def _with_schedules(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Check the section with the values of each point of its schedules; keep the values of the first point."""
        if isinstance(data, Section):
            if isinstance(data, cls):
                return handler(data)
            data = data.to_dict()
        if not isinstance(data, Mapping) or not any(map(is_schedule, data.values())):
            return handler(data)
        found = _schedules_in(cls, data)
        if not found:
            return handler(data)
        for number in reversed(range(max(len(each.points) for each in found.values()))):
            now = {
                key: each.points[min(number, len(each.points) - 1)][1]
                for key, each in found.items()
            }
            section = handler({**data, **now})
        section.__dict__[STORE] = found
        return section

    if not TYPE_CHECKING:  # otherwise mypy would accept every attribute name

        def __getattr__(self, key: str) -> Any:
            """Raise ConfigError for a scheduled key that is read too early, or else AttributeError."""
            error = unread(self, key) if STORE in self.__dict__ else None
            if error is not None:
                raise error
            return super().__getattr__(key)

    def __getitem__(self, key: str) -> Any:
        if key in type(self).model_fields:
            return self.__dict__[key] if key in self.__dict__ else getattr(self, key)
        return (self.__pydantic_extra__ or {})[key]

    def __contains__(self, key: object) -> bool:
        return key in type(self).model_fields or key in (self.__pydantic_extra__ or {})

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]
        yield from type(self).model_fields
        yield from self.__pydantic_extra__ or {}

    def __len__(self) -> int:
        return len(type(self).model_fields) + len(self.__pydantic_extra__ or {})

    def __bool__(self) -> bool:
        return len(self) > 0

    def keys(self) -> tuple[str, ...]:
        """The names of all keys."""
        return tuple(self)

    def values(self) -> tuple[Any, ...]:
        """The values of all keys."""
        return tuple(self[key] for key in self)

    def items(self) -> tuple[tuple[str, Any], ...]:
        """Pairs of key and value of all keys."""
        return tuple((key, self[key]) for key in self)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of ``key``, or ``default`` if there is no such key."""
        if key not in self:
            return default
        return self[key]

    def given(self) -> dict[str, Any]:
        """Return plain dicts like `to_dict`, but only of keys that were set explicitly."""
        return {key: self.plain(key) for key in self if key in self.model_fields_set}

    def to_dict(self) -> dict[str, Any]:
        """Return a copy in plain dicts, lists and scalars, as in the JSON file."""
        return {key: self.plain(key) for key in self}

    def plain(self, key: str) -> Any:
        """Return the value of a key as in the JSON file; in an algorithm's copy, the current value of its schedule."""
        store: Scheduled | None = self.__dict__.get(STORE)
        if store is None or store.in_use or key not in store:
            return _plain(self[key])
        return store[key].to_dict()


def _schedules_in(section: type[Section], data: Mapping[str, Any]) -> Scheduled:
    """Return the schedules in the values of a section, by key.

    Raises:
        ValidationError: a schedule is malformed, or the key cannot have a schedule.
    """
    found, problems = Scheduled(), list[InitErrorDetails]()
    for key, value in data.items():
        field = section.model_fields.get(key)
        if field is None or not is_schedule(value) or not is_plain(field):
            continue
        words = "is read once, before the training, so that a schedule cannot change it: give a plain value"
        if takes_fractions(field.annotation):
            try:
                found[key] = parsed(value)
                continue
            except ValueError as error:
                words = f"schedule: {error}"
        kind = PydanticCustomError("schedule", "{text}", {"text": words})
        problems.append(InitErrorDetails(type=kind, loc=(key,), input=value))
    if problems:
        raise ValidationError.from_exception_data(section.__name__, problems)
    return found


def _tuples(value: object) -> object:
    return tuple(_tuples(v) for v in value) if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def _freeze(value: object) -> object:
    if isinstance(value, Mapping):
        return OpenSection.model_validate(value)
    if isinstance(value, list | tuple):
        return tuple(_freeze(v) for v in value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        raise ValueError("must be finite, not NaN or infinity")
    if not isinstance(value, (*SCALARS, Section)):
        raise ValueError(
            "must be a JSON value (a number, text, list, object, true, false or null), not a "
            f"{type(value).__name__}"
        )
    return value


Free = Annotated[Any, AfterValidator(_freeze)]
"""Any JSON value, frozen."""


class OpenSection(Section):
    """Free-form object with any keys and JSON values; nested objects are `OpenSection` too."""

    model_config = ConfigDict(extra="allow")

    __pydantic_extra__: dict[str, Free] = Field(init=False)

    if not TYPE_CHECKING:  # otherwise mypy would accept every attribute name

        def __getattr__(self, key: str) -> Any:
            """Return the value of a key; for a missing key, raise MissingKeyError with the remedies."""
            try:
                return super().__getattr__(key)
            except AttributeError:
                if key.startswith("_"):
                    raise
                error = MissingKeyError(self._words_for_missing(key))
                error.name, error.obj = key, self
                raise error from None

    def _words_for_missing(self, key: str) -> str:
        return (
            f"key '{key}' is read in a free-form section of the configuration that has "
            f"{', '.join(self) or 'no keys'}: set it there, or read it with .get('{key}', a default)"
        )


class SectionChoice(ABC):
    """Chooses the type of a nested section by a value inside it; used as field metadata or as ``entry_type``."""

    @abstractmethod
    def section_of(self, tree: object) -> type[Section]:
        """Return the type of the section for these values; the base class if the values do not determine the type."""


def child_type(section: type[Section], key: str, tree: object = None) -> type[Section] | None:
    """Return the type of the section under ``key``, or None if there is no single section.

    Args:
        section: type of the section that contains the key.
        key: name of a field, or of an entry.
        tree: the values of the section under ``key``; None if unknown.
    """
    field = section.model_fields.get(key)
    if field is None:
        entry = section.entry_type
        return entry.section_of(tree) if isinstance(entry, SectionChoice) else entry
    for choice in field.metadata:
        if isinstance(choice, SectionChoice):
            return choice.section_of(tree)
    return _section_in(field.annotation)


def _section_in(annotation: object) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    found = (_section_in(arg) for arg in get_args(annotation))
    return next((section for section in found if section is not None), None)
