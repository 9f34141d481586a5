"""Slot of algorithms: a network with a loss, a reward, or both, from the batches that the algorithm learns from.

    "algo": {"auxiliary": {"novelty": {"type": "rnd", "reward": 0.1}}}

A type is one file: its section, derived from :class:`AuxiliaryConfig`, and its class under
``@register("rnd", RNDConfig)``. It is found by name: the module ``imitate.auxiliary.<type>``, or an entry point of
another package in the group ``imitate.auxiliaries``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import ConfigDict, Field, WrapValidator
from torch import Tensor, nn

from imitate.config import OptimizerConfig, Section
from imitate.config.plugins import installed_points
from imitate.errors import ConfigError, nearest
from imitate.models.actor import GroupEncoder

ENTRY_POINTS = "imitate.auxiliaries"
PREFIX = "auxiliary/"
"""Before the given name: the name of its network."""

Batch = Mapping[str, Any]


class AuxiliaryConfig(Section):
    """One entry of ``algo.auxiliary``; a type adds keys of its own."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(min_length=1, description="kind of auxiliary, such as 'rnd'")
    loss: float = Field(1.0, ge=0, description="weight of its loss")
    reward: float = Field(
        0.0, ge=0, description="weight of its reward, added to the rewards; 0: none"
    )
    optimizer: OptimizerConfig = Field(
        OptimizerConfig.model_validate({"learning_rate": {"initial": 1e-4}}),
        description="optimizer of its own network",
    )


class Auxiliary(nn.Module, ABC):
    """A network beside an algorithm's own.

    Args:
        config: its section.
        make_encoder: makes a new encoder of observations, without goals.
        ac_dim: A.
    """

    def __init__(self, config: Any, make_encoder: Callable[[], GroupEncoder], ac_dim: int) -> None:
        super().__init__()
        self.config = config

    @abstractmethod
    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss, and scalars to log.

        Args:
            batch: prepared transitions: ``obs``, ``next_obs`` {key: (B, [F,] ...)}, ``actions`` (B, A).
        """

    def reward(self, batch: Batch) -> Tensor | None:
        """(B,) without gradient; None where it gives no reward."""
        return None

    def follow(self, batch: Batch) -> None:  # noqa: B027 - a hook, empty by default
        """Update statistics or targets, after the algorithm's own step."""


_kinds: dict[str, tuple[type[Auxiliary], type[AuxiliaryConfig]]] = {}
Kind = TypeVar("Kind", bound=type[Auxiliary])


def register(name: str, section: type[AuxiliaryConfig]) -> Callable[[Kind], Kind]:
    """Register the class of a type.

    Args:
        name: value of the key ``type``; registering it twice raises ConfigError.
        section: its section.
    """

    def decorator(kind: Kind) -> Kind:
        if name in _kinds:
            raise ConfigError(f"auxiliary '{name}' is already registered: choose another name")
        _kinds[name] = (kind, section)
        return kind

    return decorator


def find(name: str) -> tuple[type[Auxiliary], type[AuxiliaryConfig]]:
    """Class and section of a type. Raises ConfigError with the nearest name for an unknown one."""
    if name not in _kinds:
        module = f"{__package__}.{name}"
        if re.fullmatch(r"[A-Za-z]\w*", name) and find_spec(module) is not None:
            import_module(module)
        for point in installed_points(ENTRY_POINTS, name):
            point.load()
    if name not in _kinds:
        known = {*_kinds, "rnd", *(point.name for point in installed_points(ENTRY_POINTS))}
        raise ConfigError(f"algo.auxiliary: no type '{name}'; {nearest(name, sorted(known))}")
    return _kinds[name]


def _by_type(value: Any, handler: Any) -> AuxiliaryConfig:
    """The entry, checked by the section of its type."""
    tree = value.to_dict() if isinstance(value, Section) else value
    if not isinstance(tree, Mapping) or not isinstance(tree.get("type"), str):
        return handler(value)  # type: ignore[no-any-return] # pydantic says what is missing
    try:
        section = find(tree["type"])[1]
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return section.model_validate(tree)


class AuxiliariesConfig(Section):
    """Auxiliaries by names of one's choice."""

    model_config = ConfigDict(extra="allow")
    entry_type: ClassVar[type[Section] | None] = AuxiliaryConfig

    __pydantic_extra__: dict[str, Annotated[AuxiliaryConfig, WrapValidator(_by_type)]] = Field(
        init=False
    )


def built(
    configs: AuxiliariesConfig, make_encoder: Callable[[], GroupEncoder], ac_dim: int
) -> dict[str, Auxiliary]:
    """New auxiliaries by the names of their networks."""
    return {
        PREFIX + name: find(config.type)[0](config, make_encoder, ac_dim)
        for name, config in configs.items()
    }
