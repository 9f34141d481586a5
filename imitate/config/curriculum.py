"""The section ``train.online.curriculum``: a task that becomes harder as the policy learns."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, model_validator
from typing_extensions import Self

from imitate.config.section import OpenSection, Section


class UntilConfig(Section):
    """Condition under which a stage ends, judged after each evaluation; all that are given have to hold."""

    success_rate: float | None = Field(
        None, ge=0, le=1, description="Success rate of the evaluation, at least."
    )
    mean_return: float | None = Field(
        None, description="Mean return of the evaluation, at least; of several agents their sum."
    )
    min_steps: NonNegativeInt = Field(
        0, description="Environment steps since the stage began, at least."
    )

    @property
    def ends(self) -> bool:
        """True if there is any condition."""
        return self.success_rate is not None or self.mean_return is not None or self.min_steps > 0


class StageConfig(Section):
    """One stage: a form of the environment, and when it has been learned."""

    name: str | None = Field(None, description="Shown in the log; null: its number alone.")
    env_kwargs: OpenSection = Field(
        OpenSection(), description="Arguments laid over the environment's own. Free-form."
    )
    until: UntilConfig = Field(
        UntilConfig(), description="When the next stage begins; the last stage needs none."
    )


class CurriculumConfig(Section):
    """Stages of the environment, from easy to hard; the last one is the task."""

    stages: tuple[StageConfig, ...] = Field((), description="In their order; empty: no curriculum.")
    evaluate: Literal["both", "stage", "last"] = Field(
        "both",
        description="Environment of evaluations: that of the present stage, by which the stage is judged, "
        "and that of the last one, by which checkpoints are; or one of them for both.",
    )
    buffer: Literal["keep", "clear"] = Field(
        "keep", description="Replay buffer when a stage begins, for off-policy algorithms."
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
