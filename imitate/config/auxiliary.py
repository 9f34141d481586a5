"""Sections of auxiliary losses and intrinsic rewards, which every algorithm can have beside its own losses."""

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

    type: str = Field(
        min_length=1, description="Type of the auxiliary loss or intrinsic reward, such as 'rnd'."
    )
    loss: float = Field(1.0, ge=0, description="Weight of the auxiliary's loss.")
    reward: float = Field(
        0.0,
        ge=0,
        description="Weight of the intrinsic reward, which is added to the rewards; 0 to add none.",
    )
    reward_on_demos: bool = Field(
        True,
        description="Add the intrinsic reward to steps of demonstrations too; if false, only to steps of the "
        "replay buffer.",
    )
    optimizer: OptimizerConfig = Field(
        adam(1e-4),
        description="Optimizer of the auxiliary's network.",
    )

    @property
    def num_steps(self) -> int:
        """Number K of successive transitions from which the loss is computed."""
        return 1

    @property
    def needs_rewards(self) -> bool:
        """True if the loss depends on the rewards of the data."""
        return False


class SharingAuxiliaryConfig(AuxiliaryConfig):
    """Entry of an auxiliary loss that can use and train the encoder of one of the algorithm's networks."""

    encoder: str | None = Field(
        None,
        description="Network whose encoder the loss uses and trains, such as 'policy', 'actor' or 'critic'; "
        "null for a separate encoder.",
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
    """Auxiliary losses and intrinsic rewards, by names that the user chooses."""

    model_config = ConfigDict(extra="allow")
    entry_type = AUXILIARIES

    __pydantic_extra__: dict[str, Annotated[AuxiliaryConfig, AUXILIARIES]] = Field(init=False)

    @property
    def following(self) -> FollowingSteps | None:
        """Following steps that a batch must contain for the auxiliary losses; None without auxiliaries."""
        entries = self.values()
        if not entries:
            return None
        return FollowingSteps(
            max(entry.num_steps for entry in entries), any(entry.needs_rewards for entry in entries)
        )


def joint_following(needs: Iterable[FollowingSteps | None]) -> FollowingSteps | None:
    """Return the fewest following steps that satisfy all given needs; None if all of them are None."""
    known = [each for each in needs if each is not None]
    if not known:
        return None
    return FollowingSteps(
        max(each.number for each in known),
        any(each.rewards for each in known),
        any(each.ends for each in known),
    )
