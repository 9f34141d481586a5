"""The whole configuration: robomimic's JSON tree, typed and frozen."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from imitate.config.algo_section import AlgoSection
from imitate.config.algorithms import find
from imitate.config.base_config import BaseConfig
from imitate.config.observation import ObservationConfig, Observations
from imitate.config.overrides import put
from imitate.config.problems import problem_lines
from imitate.config.section import merged
from imitate.errors import ConfigError


def _as_the_algorithm_wants(
    value: object, handler: Callable[[object], AlgoSection], info: ValidationInfo
) -> AlgoSection:
    name = info.data.get("algo_name")
    if name is None:  # this is already an error of its own
        return handler({})
    return find(name).section.model_validate(value)


def _observed_as_the_algorithm_wants(
    value: object, handler: Callable[[object], Observations], info: ValidationInfo
) -> Observations:
    name = info.data.get("algo_name")
    observed = None if name is None else find(name).section.observations
    return (observed or ObservationConfig).model_validate(value)


class Config(BaseConfig):
    """Checked configuration, made by `load_config`. It is never changed, only copied with other values."""

    algo: Annotated[AlgoSection, WrapValidator(_as_the_algorithm_wants)] = Field(
        AlgoSection(), validate_default=True, description="Settings of the algorithm."
    )
    observation: Annotated[Observations, WrapValidator(_observed_as_the_algorithm_wants)] = Field(
        ObservationConfig(), description="Observations and their encoders."
    )

    _folder: Path | None = PrivateAttr(None)

    @model_validator(mode="before")
    @classmethod
    def _lay_over_the_algorithms_defaults(cls, data: object) -> object:
        if isinstance(data, Mapping) and isinstance(data.get("algo_name"), str):
            return merged(find(data["algo_name"]).section.tree_defaults, data)
        return data

    @model_validator(mode="after")
    def _no_conflicts(self) -> Config:
        problems = self.algo.conflicts(self)
        if problems:
            raise PydanticCustomError("conflict", "{text}", {"text": "\n".join(problems)})
        return self

    @classmethod
    def build(cls, tree: dict[str, Any], *, label: str = "", folder: Path | None = None) -> Config:
        """Check a plain tree and make a configuration of it.

        Args:
            tree: tree in the present form (see `imitate.config.migration`).
            label: name of the file, written before each problem.
            folder: folder of the file, for relative paths of data.

        Raises:
            ConfigError: one line per problem.
        """
        prefix = f"{label}: " if label else ""
        try:
            config = cls.model_validate(tree)
        except ValidationError as error:
            lines = problem_lines(error, cls, tree)
            raise ConfigError("\n".join(prefix + line for line in lines)) from None
        except ConfigError as error:
            raise ConfigError(f"{prefix}{error}") from None
        config._folder = folder
        return config

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.to_json())

    @property
    def folder(self) -> Path | None:
        """Folder of the JSON file from which the configuration was read; None if it was not a file."""
        return self._folder

    def to_json(self) -> str:
        """Return the whole tree as JSON text; `load_config` turns it into an equal object."""
        return json.dumps(self.to_dict(), indent=2)

    def with_overrides(self, values: Mapping[str, Any]) -> Config:
        """Return a copy with other values, checked like any other configuration.

        Args:
            values: values by dotted key, such as ``{"train.batch_size": 10}``. An object replaces the whole subtree.
        """
        tree = self.to_dict()
        for path, value in values.items():
            put(tree, path, deepcopy(value))
        return Config.build(tree, folder=self._folder)
