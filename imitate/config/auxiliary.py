"""Sections of auxiliary losses and intrinsic rewards, which every algorithm can have beside its own losses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from imitate.config.data_needs import FollowingSteps
from imitate.config.kinds import Kinds
from imitate.config.optimizer import OptimizerConfig, adam
from imitate.config.section import Section


class AuxiliaryConfig(Section):
    """One entry of ``algo.auxiliary``; each type adds its own keys."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(min_length=1, description="Kind of auxiliary, such as 'rnd'.")
    loss: float = Field(1.0, ge=0, description="Weight of the auxiliary's loss.")
    reward: float = Field(
        0.0,
        ge=0,
        description="Weight of the auxiliary's reward, which is added to the rewards; 0: none.",
    )
    reward_on_demos: bool = Field(
        True,
        description="Add the reward to steps of demonstrations too; false: only to replayed steps.",
    )
    optimizer: OptimizerConfig = Field(
        adam(1e-4),
        description="Optimizer of the auxiliary's network.",
    )

    @property
    def num_steps(self) -> int:
        """K, number of transitions in a row that the loss is computed from."""
        return 1

    @property
    def needs_rewards(self) -> bool:
        """True if the loss depends on the rewards of the data."""
        return False


class SharingAuxiliaryConfig(AuxiliaryConfig):
    """Entry of a type that can learn from the features of one of the algorithm's networks, and train them."""

    encoder: str | None = Field(
        None,
        description="Network whose encoder the loss uses and trains, such as 'policy', 'actor' or 'critic'; null: an "
        "encoder of its own.",
    )


AUXILIARIES: Kinds[Any, AuxiliaryConfig] = Kinds(
    "algo.auxiliary",
    "imitate.algo.slots",
    "imitate.auxiliaries",
    AuxiliaryConfig,
    (
        "decoder",
        "diayn",
        "icm",
        "inverse",
        "monet",
        "mutual_information",
        "predictive",
        "rnd",
        "vae",
        "vq",
    ),
)


class AuxiliariesConfig(Section):
    """Auxiliaries by user-chosen names."""

    model_config = ConfigDict(extra="allow")
    entry_type = AUXILIARIES

    __pydantic_extra__: dict[str, Annotated[AuxiliaryConfig, AUXILIARIES]] = Field(init=False)

    @property
    def following(self) -> FollowingSteps | None:
        """Steps that the losses are computed from; None without auxiliaries."""
        entries = self.values()
        if not entries:
            return None
        return FollowingSteps(
            max(entry.num_steps for entry in entries), any(entry.needs_rewards for entry in entries)
        )


def joint_following(needs: Iterable[FollowingSteps | None]) -> FollowingSteps | None:
    """Return steps that are enough for all of these needs."""
    known = [each for each in needs if each is not None]
    if not known:
        return None
    return FollowingSteps(
        max(each.number for each in known),
        any(each.rewards for each in known),
        any(each.ends for each in known),
    )
