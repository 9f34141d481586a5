"""Schedules: numbers that change with the progress of the training, such as ``{"schedule": [[0, 1.0], [0.5, 0.1]]}``.

Any key of the section ``algo`` that takes floats may have a schedule. The section then has no value for this key, and
reading the key raises an error, because a value read before the training would not follow the schedule. Each algorithm
has its own copy of the section (:class:`Schedules`), into which :meth:`Schedules.set` writes the values for the current
progress. So a value that is read at each update follows its schedule, and reading a scheduled value in advance is an
error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from imitate.errors import ConfigError

KEY = "schedule"
"""The only key of the JSON object that stands in place of a scheduled number."""
STORE = "$schedules"
"""Key in a section's ``__dict__`` for its :class:`Scheduled` keys; absent if the section has no schedule."""

SectionT = TypeVar("SectionT", bound=BaseModel)


@dataclass(frozen=True)
class Schedule:
    """A piecewise linear function of the progress in [0, 1].

    Attributes:
        points: pairs of progress and value, in rising order of progress. Two points at the same progress make a step.
    """

    points: tuple[tuple[float, float], ...]

    def at(self, progress: float) -> float:
        """Return the value at ``progress``; before the first and after the last point, the value of that point."""
        before = self.points[0]
        for point in self.points:
            if progress < point[0]:
                share = (progress - before[0]) / (point[0] - before[0]) if point != before else 0.0
                return before[1] + share * (point[1] - before[1])
            before = point
        return before[1]

    def to_dict(self) -> dict[str, Any]:
        """Return the schedule in the form of the JSON file."""
        return {KEY: [list(point) for point in self.points]}


class Scheduled(dict[str, Schedule]):
    """The scheduled keys of one section.

    Attributes:
        path: dotted key of the section.
        in_use: true in an algorithm's copy of the section, whose ``to_dict`` has the current values.
    """

    path: str = ""
    in_use: bool = False


def is_schedule(value: object) -> bool:
    """Return true for an object with the only key ``schedule``."""
    return isinstance(value, Mapping) and len(value) == 1 and KEY in value


def takes_fractions(annotation: Any) -> bool:
    """Return true if a field with this annotation accepts floats."""
    return annotation is float or any(takes_fractions(arg) for arg in _alternatives(annotation))


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return () if getattr(annotation, "__origin__", None) is tuple else get_args(annotation)


def is_plain(field: FieldInfo) -> bool:
    """Return true if a field is a number, a text, a list or a choice, but not an object."""
    alternatives = (field.annotation, *_alternatives(field.annotation))
    return not any(
        one is Any or (isinstance(one, type) and issubclass(one, BaseModel)) for one in alternatives
    )


def parsed(value: Mapping[str, Any]) -> Schedule:
    """Parse ``{"schedule": [[progress, value], ...]}``; raise ValueError if it is malformed."""
    points = value[KEY]
    wanted = "wanted pairs [progress, value], such as [[0, 1.0], [0.5, 0.1]]"
    if not isinstance(points, list | tuple) or not points:
        raise ValueError(f"{wanted}, got {points!r}")
    for point in points:
        pair = isinstance(point, list | tuple) and len(point) == 2
        if not pair or not all(type(number) in (int, float) for number in point):
            raise ValueError(f"{wanted}, got {point!r}")
    times = [point[0] for point in points]
    if times != sorted(times) or not 0 <= times[0] <= times[-1] <= 1:
        raise ValueError(
            f"the progress of the points must be from 0 to 1 and in rising order, got {times}"
        )
    return Schedule(tuple((float(time), float(number)) for time, number in points))


class ScheduledKey(NamedTuple):
    """A scheduled key of a section."""

    section: BaseModel
    key: str
    path: str
    schedule: Schedule


def places(section: BaseModel, path: str) -> Iterator[ScheduledKey]:
    """Yield all scheduled keys of the section with the dotted key ``path``, and of its nested sections."""
    store = section.__dict__.get(STORE) or {}
    for key, schedule in store.items():
        yield ScheduledKey(section, key, f"{path}.{key}", schedule)
    for key, value in {**section.__dict__, **(section.__pydantic_extra__ or {})}.items():
        parts = value if isinstance(value, tuple) else (value,)
        for part in parts:
            if isinstance(part, BaseModel):
                yield from places(part, f"{path}.{key}" if path else key)


def seal(section: BaseModel, path: str) -> None:
    """Remove the values of scheduled keys, so that reading them raises an error."""
    for place in places(section, path):
        place.section.__dict__[STORE].path = place.path.rpartition(".")[0]
        place.section.__dict__.pop(place.key, None)


def unread(section: BaseModel, key: str) -> ConfigError | None:
    """Return the error for reading a scheduled key too early; None if the key has no schedule."""
    store: Scheduled | None = section.__dict__.get(STORE)
    if store is None or key not in store:
        return None
    return ConfigError(
        f"{store.path}.{key}: is read once, before the training, so that a schedule cannot change it: give a number"
    )


def misplaced(config: BaseModel) -> list[str]:
    """List problems: schedules at keys whose values do not change during a training."""
    problems = []
    for place in places(config, ""):
        if ".optim_params." in place.path or ".optimizer." in place.path:
            problems.append(
                f"{place.path}: an optimizer has schedules of its own: give a number, and scheduler_type"
            )
        elif not place.path.startswith(("algo.", "train.online.prioritized.")):
            problems.append(
                f"{place.path}: only numbers in algo and train.online.prioritized can have a schedule: give a number"
            )
    return problems


def has_schedule(section: BaseModel, key: str) -> bool:
    """Return true if a key of a section has a schedule."""
    return key in (section.__dict__.get(STORE) or {})


def schedule_of(section: BaseModel, key: str) -> Schedule:
    """Return the schedule of a key; for a constant number, a schedule with a single point."""
    store: Mapping[str, Schedule] = section.__dict__.get(STORE) or {}
    return store.get(key) or Schedule(((0.0, float(getattr(section, key))),))


class Schedules:
    """The scheduled numbers of one algorithm.

    Attributes:
        progress: fraction of the training, in [0, 1], for which the section's current values were computed.
    """

    def __init__(self) -> None:
        self.progress = 0.0
        self._places: tuple[ScheduledKey, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._places)

    @classmethod
    def of(cls, section: SectionT) -> tuple[Schedules, SectionT]:
        """Return the schedules of a section, and a copy without the scheduled values (or the section if none exist)."""
        schedules = cls()
        if not any(True for _ in places(section, "algo")):
            return schedules, section
        copied = deepcopy(section)
        seal(copied, "algo")
        schedules._places = tuple(places(copied, "algo"))
        for place in schedules._places:
            place.section.__dict__[STORE].in_use = True
        return schedules, copied

    def set(self, progress: float) -> None:
        """Write the values for ``progress``, in [0, 1], into the section."""
        self.progress = progress
        for place in self._places:
            place.section.__dict__[place.key] = place.schedule.at(progress)

    @contextmanager
    def unread(self) -> Iterator[None]:
        """Remove the scheduled values during the body, so that an object made there cannot keep a copy of them."""
        for place in self._places:
            place.section.__dict__.pop(place.key)
        try:
            yield
        finally:
            self.set(self.progress)

    def state_dict(self) -> dict[str, float]:
        """Return the progress for a checkpoint; an empty dict without schedules."""
        return {"progress": self.progress} if self else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Write the values for a checkpoint's progress into the section."""
        self.set(float(state.get("progress", 0.0)))
