"""Slot of algorithms: an auxiliary network with a loss, a reward or both, computed from the algorithm's batches.

    "algo": {"auxiliary": {"novelty": {"type": "rnd", "reward": 0.1}}}

A type is one file: its section, derived from :class:`AuxiliaryConfig`, and its class under
``@register("rnd", RNDConfig)``. It is searched by name: as the module ``imitate.algo.slots.<type>``, or as an
entry point of another package in the group ``imitate.auxiliaries``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from torch import Tensor, nn

from imitate.config import OptimizerConfig, Section
from imitate.config.kinds import Kinds
from imitate.config.optimizer import adam
from imitate.models.actor import GroupEncoder

PREFIX = "auxiliary/"
"""Prefix of the names of auxiliary networks."""

Batch = Mapping[str, Any]


class AuxiliaryConfig(Section):
    """One entry of ``algo.auxiliary``; each type adds its own keys."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(min_length=1, description="kind of auxiliary, such as 'rnd'")
    loss: float = Field(1.0, ge=0, description="weight of the auxiliary's loss")
    reward: float = Field(
        0.0,
        ge=0,
        description="weight of the auxiliary's reward, which is added to the rewards; 0: none",
    )
    optimizer: OptimizerConfig = Field(
        adam(1e-4),
        description="optimizer of the auxiliary's network",
    )


class Auxiliary(nn.Module, ABC):
    """Network beside an algorithm's own networks.

    Args:
        config: section of the auxiliary.
        make_encoder: function that makes a new encoder of observations, without goals.
        ac_dim: A, action dimensions.
    """

    def __init__(self, config: Any, make_encoder: Callable[[], GroupEncoder], ac_dim: int) -> None:
        super().__init__()
        self.config = config

    @abstractmethod
    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss, and scalars to log.

        Args:
            batch: prepared transitions: ``obs``, ``next_obs`` {key: (B, [F,] ...)}, ``actions`` (B, A). Transitions
                imagined by a model are not included; they are passed only to :meth:`reward`.
        """

    def reward(self, batch: Batch) -> Tensor | None:
        """Return rewards (B,) without gradient, or None if the auxiliary gives none."""
        return None

    def follow(self, batch: Batch) -> None:  # noqa: B027 - a hook, empty by default
        """Update statistics or targets, after the algorithm's own step."""


AUXILIARIES: Kinds[Auxiliary, AuxiliaryConfig] = Kinds(
    "algo.auxiliary", __package__, "imitate.auxiliaries", AuxiliaryConfig, ("rnd",)
)
register = AUXILIARIES.register


class AuxiliariesConfig(Section):
    """Auxiliaries by user-chosen names."""

    model_config = ConfigDict(extra="allow")
    entry_type = AUXILIARIES

    __pydantic_extra__: dict[str, Annotated[AuxiliaryConfig, AUXILIARIES]] = Field(init=False)


def built(
    configs: AuxiliariesConfig | None, make_encoder: Callable[[], GroupEncoder], ac_dim: int
) -> dict[str, Auxiliary]:
    """Create the auxiliaries of a section, by the names of their networks; none without a section."""
    return {
        PREFIX + name: AUXILIARIES.find(config.type)[0](config, make_encoder, ac_dim)
        for name, config in (configs or {}).items()
    }
