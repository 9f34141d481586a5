"""Slot of algorithms: an auxiliary network with a loss, a reward or both, computed from the algorithm's batches.

    "algo": {"auxiliary": {"novelty": {"type": "rnd", "reward": 0.1}}}

A type is one file: its section, derived from :class:`AuxiliaryConfig`, and its class under
``@register("rnd", RNDConfig)``. It is searched by name: as the module ``imitate.algo.slots.<type>``, or as an
entry point of another package in the group ``imitate.auxiliaries``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

from pydantic import ConfigDict, Field
from torch import Tensor, nn

from imitate.algo.base.encoding import Encoding, Shapes
from imitate.config import OptimizerConfig, Section
from imitate.config.kinds import Kinds
from imitate.config.optimizer import adam
from imitate.errors import ConfigError
from imitate.models.actor import GroupEncoder, Obs

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


class SharedEncoder:
    """Encoder that belongs to one of the algorithm's networks, and is trained with that network.

    It is not a module, so that the auxiliary neither saves its weights again nor gives them to its own optimizer.

    Args:
        nets: the algorithm's networks.
        name: name of the network.
    """

    def __init__(self, nets: nn.ModuleDict, name: str) -> None:
        self._nets, self.name = nets, name

    @property
    def module(self) -> GroupEncoder:
        """The encoder itself."""
        return _encoder_of(self._nets[self.name])[0]

    @property
    def output_dim(self) -> int:
        """D, number of features."""
        return self.module.output_dim

    def __call__(self, obs: Obs, goal: Obs | None = None) -> Tensor:
        """Encode observations (B, [F,] ...) and goals (B, ...), if the network has goals: (B, D)."""
        return cast(Tensor, self.module(obs, goal))


def _encoder_of(net: nn.Module) -> list[GroupEncoder]:
    """Return the encoders of observations that are a direct part of a network."""
    own = [getattr(net, "encoder", None), *getattr(net, "encoders", ())]
    return [each for each in own if isinstance(each, GroupEncoder)]


@dataclass(frozen=True)
class AuxiliaryContext:
    """Parts of the algorithm from which an auxiliary is built.

    Attributes:
        encoding: observations of the algorithm.
        ac_dim: A, action dimensions.
        nets: networks of the algorithm.
    """

    encoding: Encoding
    ac_dim: int
    nets: nn.ModuleDict

    @property
    def shapes(self) -> Shapes:
        """Shapes of the observations as networks see them, without frames: vectors (D,), images (C, H, W)."""
        return self.encoding.shapes("obs")

    @property
    def frames(self) -> int:
        """F; if F > 1, observations in batches are (B, F, ...), the newest last."""
        return self.encoding.frames

    def encoder(self, keys: Iterable[str] | None = None) -> GroupEncoder:
        """Create an encoder of observations, without goals; of all observations or of these keys."""
        return self.encoding.encoder(goals=False, keys=keys)

    def shared(self, name: str) -> SharedEncoder:
        """Return the encoder of one of the algorithm's networks, such as ``policy``, ``actor`` or ``critic``.

        Raises:
            ConfigError: the algorithm has no such network, or the network has no encoder or several.
        """
        found = {key: len(_encoder_of(net)) for key, net in self.nets.items()}
        if found.get(name, 0) > 1:
            raise ConfigError(
                f"algo.auxiliary: network '{name}' has {found[name]} encoders: set ensemble.shared_encoder to true"
            )
        if found.get(name) != 1:
            able = ", ".join(key for key, number in found.items() if number == 1) or "none"
            raise ConfigError(
                f"algo.auxiliary: no network '{name}' with an encoder of observations; those that have one: {able}"
            )
        return SharedEncoder(self.nets, name)


class Auxiliary(nn.Module, ABC):
    """Network beside an algorithm's own networks.

    Args:
        config: section of the auxiliary.
        context: parts of the algorithm from which it is built.
    """

    def __init__(self, config: Any, context: AuxiliaryContext) -> None:
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


def built(configs: AuxiliariesConfig | None, context: AuxiliaryContext) -> dict[str, Auxiliary]:
    """Create the auxiliaries of a section, by the names of their networks; none without a section."""
    return {
        PREFIX + name: AUXILIARIES.find(config.type)[0](config, context)
        for name, config in (configs or {}).items()
    }
