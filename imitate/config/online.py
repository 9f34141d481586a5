"""The section ``train.online``: online reinforcement learning and its curriculum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)
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


class PrioritizedConfig(Section):
    """Prioritized replay: steps with large TD errors are sampled more often."""

    enabled: bool = Field(
        False, description="Sample steps with probabilities that depend on their TD errors."
    )
    alpha: float = Field(
        0.6,
        ge=0,
        le=1,
        description="Exponent of the TD errors. 0: uniform sampling; 1: in proportion to the errors.",
    )
    beta: float = Field(
        0.4,
        ge=0,
        le=1,
        description=(
            "Exponent of the importance-sampling correction in the loss; by default it rises from 0.4 to 1 during "
            "training."
        ),
    )


class HindsightConfig(Section):
    """Hindsight experience replay: goals of replayed steps are replaced by goals achieved later."""

    enabled: bool = Field(False, description="Replace goals of replayed steps by achieved ones.")
    share: float = Field(
        0.8,
        ge=0,
        le=1,
        description=(
            "Fraction of a batch with replaced goals; the paper's k corresponds to k / (k + 1), so 0.8 "
            "for k = 4."
        ),
    )
    strategy: Literal["future", "final", "episode"] = Field(
        "future",
        description="New goal: one achieved at a later step of the episode, at its last step, or at any step.",
    )
    ends_at_goal: bool | None = Field(
        None,
        description="End an episode, as a terminal, when it reaches its goal; null: "
        "train.online.end_at_success.",
    )


class WrapperConfig(Section):
    """Wrapper of the environment, which adds an observation of its name, and may change the actions."""

    type: Literal["skills", "previous_action", "repeated", "goals"] = Field(
        description="Skills: observation skill, drawn for each episode. previous_action: the last action and 1, or "
        "zeros at an episode's start. Repeated: actions have a choice of repetitions; observation duration. Goals: "
        "states are goals; observations achieved_goal and desired_goal, reward -1 until the goal is reached."
    )
    num: PositiveInt | None = Field(
        None,
        description="Skills: number of skills, or of dimensions if they are continuous; repeated: largest number of "
        "repetitions.",
    )
    continuous: bool = Field(
        False, description="Skills: points on the unit sphere instead of one-hot numbers."
    )

    of: str | None = Field(None, description="Goals: the vector observation that is to be reached.")
    low: tuple[float, ...] | None = Field(
        None,
        description="Goals: lowest value of each dimension of goals that are drawn uniformly; null: goals are states "
        "of train.data.",
    )
    high: tuple[float, ...] | None = Field(
        None,
        description="Goals: highest value of each dimension of goals that are drawn uniformly.",
    )
    tolerance: PositiveFloat = Field(
        0.1, description="Goals: distance at which a goal counts as reached."
    )

    @model_validator(mode="after")
    def _has_a_box(self) -> Self:
        low, high = self.low or (), self.high or ()
        if (self.type == "goals") != (self.of is not None):
            raise ValueError("of: goals, and only they, name the observation to reach")
        if len(low) != len(high) or any(a > b for a, b in zip(low, high, strict=True)):
            raise ValueError(
                f"low {list(low)} and high {list(high)}: give both, with the smaller numbers in low"
            )
        return self

    @model_validator(mode="after")
    def _has_a_number(self) -> Self:
        if (self.type in ("skills", "repeated")) != (self.num is not None):
            raise ValueError(
                f"num is missing: give the number of {self.type}"
                if self.num is None
                else f"num is {self.num}, but {self.type} has none: leave it out"
            )
        return self

    @property
    def needs_points(self) -> bool:
        """True if goals are states of the demonstrations."""
        return self.type == "goals" and self.low is None

    def described(self, discount: float, points: Sequence[Sequence[float]] = ()) -> dict[str, Any]:
        """Return the entry of env_args, for an algorithm with this discount and states of the demonstrations."""
        own = {key: value for key, value in self.to_dict().items() if value not in (None, False)}
        if self.type != "goals":
            own.pop("tolerance")
        if self.needs_points:
            own["points"] = [list(point) for point in points]
        return {**own, "discount": discount} if self.type == "repeated" else own


class OnlineConfig(Section):
    """Online reinforcement learning. An epoch then has ``experiment.epoch_every_n_steps`` environment steps."""

    enabled: bool = Field(
        False, description="Learn from steps in an environment, not only from files."
    )
    env: str | OpenSection | None = Field(
        None,
        description="Environment to learn in: a gymnasium name, or env_args as in demonstration "
        "files; null: the environment of train.data.",
    )
    wrappers: tuple[WrapperConfig, ...] = Field(
        (), description="Wrappers of the environment, the innermost first; saved in its env_args."
    )
    num_envs: PositiveInt = Field(1, description="Number of copies of the environment.")
    horizon: PositiveInt | None = Field(
        None,
        description="Steps after which an episode is truncated; null: experiment.rollout.horizon.",
    )
    end_at_success: bool = Field(False, description="End an episode at success, as a terminal.")
    num_workers: NonNegativeInt = Field(
        0, description="Number of processes that collect; 0: the training process itself collects."
    )
    max_staleness: NonNegativeInt | None = Field(
        None,
        description=(
            "With workers: collect during the updates, with weights that are at most this number of "
            "updates old; null: updates wait for the steps."
        ),
    )
    acting: Literal["collector", "central"] = Field(
        "collector",
        description=(
            "With workers: local: each worker has a copy of the policy; central: all request actions "
            "from policy_workers, and have no network."
        ),
    )
    policy_workers: PositiveInt = Field(
        1, description="With acting 'central': number of processes that compute actions."
    )
    ring: PositiveInt = Field(
        1,
        description=(
            "With acting 'central': number of groups of the environments of a worker; while one group "
            "waits for actions, the next one steps."
        ),
    )
    push_every_s: NonNegativeFloat = Field(
        0.0,
        description=(
            "With max_staleness: smallest number of seconds between two versions of the weights sent "
            "to workers; 0: a new version for each request, while at most two are in use."
        ),
    )
    step_timeout_s: PositiveFloat = Field(
        60.0,
        description="With workers: seconds for a step or a reset after which a worker counts as hung and is replaced.",
    )
    collect_steps: PositiveInt = Field(
        1, description="Steps in each environment between two rounds of updates."
    )
    warmup_steps: NonNegativeInt = Field(
        1000, description="Environment steps before the first update."
    )
    warmup_policy: str = Field(
        "random",
        pattern=r"^(random|policy|scripted|[^:\s]+:[A-Za-z_][\w.]*)$",
        description="Actions before the first update: 'random', uniform ones; 'policy', the policy's; 'scripted', "
        "those of the task's expert; 'module:function', those of a function of an observation.",
    )
    update_ratio: NonNegativeFloat = Field(
        1.0, description="Updates per environment step, for off-policy algorithms."
    )
    buffer_size: PositiveInt = Field(
        1_000_000,
        description="Capacity of the replay buffer in environment steps, for off-policy algorithms.",
    )
    prioritized: PrioritizedConfig = Field(
        PrioritizedConfig.model_validate({"beta": {"schedule": [[0, 0.4], [1, 1.0]]}}),
        description="Prioritized replay, for algorithms with critics.",
    )
    hindsight: HindsightConfig = Field(
        HindsightConfig(), description="Hindsight experience replay, for off-policy algorithms."
    )
    save_buffer: bool = Field(
        True,
        description="Save the replay buffer beside last.pth, so that a resumed run continues with it.",
    )
    obs_statistics: Literal["running", "warmup"] = Field(
        "running",
        description=(
            "With obs_normalization, for off-policy algorithms without demonstrations: compute "
            "statistics from all steps so far, or only from those before the first update."
        ),
    )
    curriculum: CurriculumConfig = Field(
        CurriculumConfig(), description="Stages of the environment, from easy to hard."
    )
    demo_ratio: float = Field(
        0.0, ge=0, le=1, description="Fraction of each batch that comes from train.data."
    )
    pretrain_updates: NonNegativeInt = Field(
        0, description="Updates on only train.data before the first environment step."
    )

    @property
    def repeats(self) -> bool:
        """True if an action may last several steps, see the wrapper ``repeated``."""
        return any(wrapper.type == "repeated" for wrapper in self.wrappers)
