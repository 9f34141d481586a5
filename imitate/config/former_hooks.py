"""Sections of other packages that were written for earlier versions: today's methods call theirs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, cast

from imitate.config.algo_section import AlgoSection
from imitate.config.section import Section

NEEDS = ("observed_steps", "transitions", "returns", "subgoals")
"""Former methods of a section, each of which is a field of :class:`imitate.config.data_needs.DataNeeds` today."""
REWARD_FREE = "reward_free"
"""Former attribute of a section, true where :attr:`DataNeeds.environment_rewards` is false today."""
VALUES = "numbers_from_data"
"""Former name of :meth:`AlgoSection.values_from_data`."""

Section.__class_vars__ |= {"tree_defaults", "observations", "acts"}
"""``acts = False`` in a class that derives from ``Section`` is no field; without this pydantic would refuse it."""


@cache
def adapted(section: type[Section]) -> type[AlgoSection]:
    """Give today's methods to a section that derives from ``Section`` or has methods of earlier versions.

    Returns:
        The class itself, where nothing is to be adapted; else a subclass of it.
    """
    former = [name for name in (*NEEDS, VALUES) if callable(getattr(section, name, None))]
    if issubclass(section, AlgoSection) and not former:
        return section
    label = f"{section.__module__}.{section.__qualname__}"
    if not issubclass(section, AlgoSection):
        remedy = "derive it from imitate.config.AlgoSection in place of Section"
    else:
        remedy = ""
    if former:
        names = ", ".join(former)
        remedy += (
            f"{' and ' if remedy else ''}define data_needs and values_from_data in place of {names}"
        )
    warnings.warn(
        f"{label}: section of an algorithm as in earlier versions: {remedy}",
        DeprecationWarning,
        stacklevel=4,
    )
    return _subclass(section, former)


def _subclass(section: type[Section], former: list[str]) -> type[AlgoSection]:
    def data_needs(self: Any, config: Any) -> Any:
        wanted = {name: getattr(self, name)(config) for name in NEEDS if name in former}
        if getattr(self, REWARD_FREE, False):
            wanted["environment_rewards"] = False
        return replace(super(made, self).data_needs(config), **wanted)

    def values_from_data(self: Any, dataset: Any) -> dict[str, Any]:
        own = self.numbers_from_data(dataset) if VALUES in former else {}
        return {**super(made, self).values_from_data(dataset), **own}

    def former_need(name: str) -> Callable[[Any, Any], Any]:
        return lambda self, config: getattr(super(made, self).data_needs(config), name)

    def numbers_from_data(self: Any, dataset: Any) -> dict[str, Any]:
        values: dict[str, Any] = super(made, self).values_from_data(dataset)
        return values

    def reduce(self: Any) -> tuple[Any, ...]:
        return _unpickled, (section, self.given())

    bases = (section,) if issubclass(section, AlgoSection) else (section, AlgoSection)
    # Last of the bases: answers ``super().transitions(config)`` in a class that overrides it.
    below = type("Former", (), {n: former_need(n) for n in NEEDS} | {VALUES: numbers_from_data})
    namespace = {
        "__module__": section.__module__,
        "__qualname__": section.__qualname__,
        "__doc__": section.__doc__,
        "__reduce__": reduce,
        "model_config": section.model_config,
        "data_needs": data_needs,
        "values_from_data": values_from_data,
    }
    metaclass: Any = type(section)
    made: Any = metaclass(section.__name__, (*bases, below), namespace)
    return cast(type[AlgoSection], made)


def _unpickled(section: type[Section], values: dict[str, Any]) -> AlgoSection:
    return adapted(section).model_validate(values)
