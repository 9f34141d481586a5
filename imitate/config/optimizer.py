"""Optimizer settings shared by the algorithms."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveFloat, model_validator
from typing_extensions import Self

from imitate.config.section import Section

Decay = Annotated[float, Field(ge=0, lt=1)]


class LearningRateConfig(Section):
    """Learning rate and its schedule."""

    initial: PositiveFloat = Field(1e-4, description="Learning rate after warm-up.")
    decay_factor: float = Field(
        0.1,
        ge=0,
        description=(
            "multistep: factor of the rate at each epoch of epoch_schedule; linear: fraction of the "
            "initial rate that is reached at the end of the decay."
        ),
    )
    epoch_schedule: tuple[NonNegativeInt, ...] = Field(
        (),
        description="Epochs at which the rate decays; for linear exactly one, the epoch at which the decay ends.",
    )
    scheduler_type: Literal["multistep", "linear", "cosine"] = Field(
        "multistep", description="Shape of the decay; cosine runs over the whole training."
    )
    warmup_steps: NonNegativeInt = Field(
        0, description="Number of updates during which the rate rises linearly from 0 to initial."
    )
    num_cycles: PositiveFloat = Field(
        0.5,
        description="cosine: number of waves during training; with 0.5 the rate falls once, to 0.",
    )
    step_every_batch: bool = Field(
        True, description="Change the rate after every batch; false: after every epoch."
    )

    @model_validator(mode="after")
    def _linear_has_one_end(self) -> Self:
        if self.scheduler_type == "linear" and len(self.epoch_schedule) != 1:
            raise ValueError(
                f"scheduler_type 'linear' wants exactly one epoch in epoch_schedule (the end of "
                "the decay), "
                f"got {list(self.epoch_schedule)}; e.g. epoch_schedule [100]"
            )
        return self


class RegularizationConfig(Section):
    """Penalties on the weights."""

    L2: float = Field(0.0, ge=0, description="Weight decay of the optimizer.")


class OptimizerConfig(Section):
    """Optimizer of one network, such as a policy or a critic."""

    optimizer_type: Literal["adam", "adamw"] = Field("adam", description="Name of the optimizer.")
    betas: tuple[Decay, Decay] = Field(
        (0.9, 0.999),
        description="Decay rates of Adam's averages: for gradients, and for their squares.",
    )
    learning_rate: LearningRateConfig = Field(
        LearningRateConfig(), description="Learning rate and its schedule."
    )
    regularization: RegularizationConfig = Field(
        RegularizationConfig(), description="Penalties on the weights."
    )


class OptimizerConfigs(Section):
    """One optimizer for each network of an algorithm, by the network's name."""

    model_config = ConfigDict(extra="allow")
    entry_type: ClassVar[type[Section] | None] = OptimizerConfig

    policy: OptimizerConfig = Field(
        OptimizerConfig(), description="Optimizer of the policy network."
    )

    __pydantic_extra__: dict[str, OptimizerConfig] = Field(init=False)
