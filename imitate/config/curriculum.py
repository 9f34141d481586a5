"""The section ``train.online.curriculum``: a task that becomes harder as the policy learns."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, model_validator
from typing_extensions import Self

from imitate.config.section import OpenSection, Section


class UntilConfig(Section):
    """Condition under which a stage ends, checked after each evaluation. All given limits must be reached."""

    success_rate: float | None = Field(
        None, ge=0, le=1, description="Smallest success rate of the evaluation."
    )
    mean_return: float | None = Field(
        None,
        description="Smallest mean return of the evaluation; with several agents, of the sum of their returns.",
    )
    min_steps: NonNegativeInt = Field(
        0, description="Smallest number of environment steps since the stage began."
    )

    @property
    def ends(self) -> bool:
        """True if any condition is set."""
        return self.success_rate is not None or self.mean_return is not None or self.min_steps > 0


class StageConfig(Section):
    """One stage: a variant of the environment, and the condition under which the stage ends."""

    name: str | None = Field(
        None, description="Name of the stage in the log; null: only its number."
    )
    env_kwargs: OpenSection = Field(
        OpenSection(), description="Arguments that replace the environment's own. Free-form."
    )
    until: UntilConfig = Field(
        UntilConfig(), description="Condition for the next stage; the last stage needs none."
    )


class CurriculumConfig(Section):
    """Stages of the environment, from easy to hard; the last one is the task."""

    stages: tuple[StageConfig, ...] = Field(
        (), description="The stages in order; empty: no curriculum."
    )
    evaluate: Literal["both", "stage", "last"] = Field(
        "both",
        description=(
            "Environments of the evaluations. Both: the current stage's, which decides when the stage "
            "ends, and the last stage's, which selects checkpoints; or only one of them for both purposes."
        ),
    )
    buffer: Literal["keep", "clear"] = Field(
        "keep",
        description="Keep or empty the replay buffer when a stage begins; for off-policy algorithms.",
    )

    @model_validator(mode="after")
    def _each_stage_ends(self) -> Self:
        for number, stage in enumerate(self.stages[:-1], 1):
            if not stage.until.ends:
                raise ValueError(
                    f"stage {number} of {len(self.stages)} has no end: give it until.success_rate, until.mean_return "
                    "or until.min_steps"
                )
        return self
