"""Optimizer settings shared by the algorithms."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    NonNegativeInt,
    PositiveFloat,
    create_model,
    model_validator,
)
from pydantic_core import CoreSchema
from typing_extensions import Self

from imitate.config.section import Section, SectionChoice

Decay = Annotated[float, Field(ge=0, lt=1)]


class LearningRateConfig(Section):
    """Learning rate and its schedule."""

    initial: PositiveFloat = Field(1e-4, description="Learning rate after warm-up.")
    decay_factor: float = Field(
        0.1,
        ge=0,
        description=(
            "For multistep, factor by which the rate is multiplied at each epoch of epoch_schedule; "
            "for linear, final rate as a fraction of the initial one."
        ),
    )
    epoch_schedule: tuple[NonNegativeInt, ...] = Field(
        (),
        description="Epochs at which the rate decays; for linear exactly one epoch, at which the decay ends.",
    )
    scheduler_type: Literal["multistep", "linear", "cosine"] = Field(
        "multistep", description="Shape of the decay; cosine runs over the whole training."
    )
    warmup_steps: NonNegativeInt = Field(
        0, description="Number of updates during which the rate rises linearly from 0 to initial."
    )
    num_cycles: PositiveFloat = Field(
        0.5,
        description="For cosine, number of periods during the training; with 0.5 the rate decreases once, to 0.",
    )
    step_every_batch: bool = Field(
        True, description="Change the rate after every batch; if false, after every epoch."
    )

    @model_validator(mode="after")
    def _linear_has_one_end(self) -> Self:
        if self.scheduler_type == "linear" and len(self.epoch_schedule) != 1:
            raise ValueError(
                "scheduler_type 'linear' needs exactly one epoch in epoch_schedule (the end of the "
                f"decay), got {list(self.epoch_schedule)}: set it to e.g. [100]"
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
        description="Decay rates of Adam's moving averages of the gradients and of their squares.",
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


class StagedOptimizerConfig(OptimizerConfig):
    """Optimizer of a network that is trained only from one epoch to another."""

    start_epoch: int = Field(
        -1,
        ge=-1,
        description="First epoch in which the network is trained; -1 for the first epoch of the training.",
    )
    end_epoch: int = Field(
        -1,
        ge=-1,
        description="First epoch in which the network is no longer trained; -1 to train it to the end.",
    )


def staged(rate: float) -> StagedOptimizerConfig:
    """Return the settings of Adam with learning rate ``rate``, for a network that is trained in all epochs."""
    return StagedOptimizerConfig.model_validate({"learning_rate": {"initial": rate}})


def adam(rate: float) -> OptimizerConfig:
    """Return the settings of Adam with learning rate ``rate``."""
    return OptimizerConfig.model_validate({"learning_rate": {"initial": rate}})


def adamw(rate: float, weight_decay: float, **schedule: Any) -> OptimizerConfig:
    """Return the settings of AdamW; ``schedule`` has further keys of the section ``learning_rate``."""
    return OptimizerConfig.model_validate(
        {
            "optimizer_type": "adamw",
            "learning_rate": {"initial": rate, **schedule},
            "regularization": {"L2": weight_decay},
        }
    )


class Networks(Section):
    """Base class of the sections ``optim_params`` with one optimizer per network; :func:`networks` makes subclasses."""

    recipe: ClassVar[tuple[Any, ...]] = ()

    def __reduce__(self) -> tuple[Callable[..., Networks], tuple[Any, ...]]:
        return _unpickled, (
            self.recipe,
            self.given(),
        )  # pickle cannot find classes created at run time

    if TYPE_CHECKING:

        def __getattr__(self, network: str) -> Any: ...


def networks(
    name: str = "OptimParams",
    words: str = "One optimizer per network.",
    /,
    **defaults: float | OptimizerConfig,
) -> Any:
    """Declare the section ``optim_params`` of an algorithm.

    For example ``optim_params: Networks = networks("TD3OptimParams", critic=1e-3, actor=1e-3)``.

    Args:
        name: class name of the section, also used in the JSON schema.
        words: description of the section in the JSON schema.
        defaults: default optimizer of each network; a number is the learning rate of a `StagedOptimizerConfig`.

    Returns:
        The declaration of the field.
    """
    optimizers = {
        k: v if isinstance(v, OptimizerConfig) else staged(v) for k, v in defaults.items()
    }
    section = _section(name, words, *optimizers.items())
    field = Field(section())
    field.metadata.append(_OfNetworks(section))
    return field


@cache
def _section(name: str, words: str, *optimizers: tuple[str, OptimizerConfig]) -> type[Networks]:
    fields: dict[str, Any] = {key: (type(one), Field(one)) for key, one in optimizers}
    section = create_model(name, __base__=Networks, __doc__=words, __module__=__name__, **fields)
    section.recipe = (name, words, *optimizers)
    return section


def _unpickled(recipe: tuple[Any, ...], values: dict[str, Any]) -> Networks:
    return _section(*recipe).model_validate(values)


class _OfNetworks(SectionChoice):
    """Metadata that gives a field annotated with the base class `Networks` its actual section type."""

    def __init__(self, section: type[Networks]) -> None:
        self._section = section

    def section_of(self, tree: object) -> type[Networks]:
        return self._section

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return handler.generate_schema(self._section)
