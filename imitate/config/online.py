"""The section ``train.online``: online reinforcement learning and its curriculum."""

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
    """Condition under which a stage ends, checked after each evaluation. All limits that are set must be reached."""

    success_rate: float | None = Field(
        None, ge=0, le=1, description="Success rate that the evaluation must reach."
    )
    mean_return: float | None = Field(
        None,
        description="Mean return that the evaluation must reach; with several agents, the mean of the sum of their "
        "returns.",
    )
    min_steps: NonNegativeInt = Field(
        0, description="Number of environment steps that the stage must last."
    )

    @property
    def ends(self) -> bool:
        """True if any condition is set."""
        return self.success_rate is not None or self.mean_return is not None or self.min_steps > 0


class StageConfig(Section):
    """One stage: a variant of the environment, and the condition under which the stage ends."""

    name: str | None = Field(
        None, description="Name of the stage in the log; null to log only its number."
    )
    env_kwargs: OpenSection = Field(
        OpenSection(),
        description="Keyword arguments of the environment that change in this stage. Free-form.",
    )
    until: UntilConfig = Field(
        UntilConfig(), description="Condition for the next stage; the last stage needs none."
    )


class CurriculumConfig(Section):
    """Curriculum: stages of the environment, from easy to hard; the last stage is the task itself."""

    stages: tuple[StageConfig, ...] = Field(
        (), description="The stages in order; empty for no curriculum."
    )
    evaluate: Literal["both", "stage", "last"] = Field(
        "both",
        description=(
            "Stages in whose environment the policy is evaluated. 'both': the current stage, whose "
            "result decides when it ends, and the last stage, whose result selects checkpoints; "
            "'stage': only the current one; 'last': only the last one."
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
                    f"stage {number} of {len(self.stages)} has no condition for its end: set "
                    "until.success_rate, until.mean_return or until.min_steps"
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
        description="Exponent of the TD errors: 0 samples uniformly, 1 in proportion to the errors.",
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
    """Hindsight experience replay: goals of replayed steps are replaced by goals that the episode achieved."""

    enabled: bool = Field(
        False, description="Replace goals of replayed steps by goals that were achieved."
    )
    share: float = Field(
        0.8,
        ge=0,
        le=1,
        description=(
            "Fraction of the samples of a batch whose goal is replaced; the paper's k corresponds to "
            "k / (k + 1), so 0.8 for k = 4."
        ),
    )
    strategy: Literal["future", "final", "episode"] = Field(
        "future",
        description="Step of the episode whose achieved goal becomes the new goal: a random later step "
        "('future'), the last step ('final') or any step ('episode').",
    )
    ends_at_goal: bool | None = Field(
        None,
        description="End an episode, as a terminal, when it reaches its goal; null to use "
        "train.online.end_at_success.",
    )


class WrapperConfig(Section):
    """Wrapper of the environment, which adds observations and may change the actions or the reward."""

    type: Literal["skills", "previous_action", "repeated", "goals"] = Field(
        description="'skills' adds an observation skill, drawn for each episode. 'previous_action' adds the "
        "last action followed by 1, or zeros at an episode's start. 'repeated' lets an action "
        "choose how often it is repeated, and adds an observation duration. 'goals' adds "
        "achieved_goal and desired_goal; the reward is -1 until the goal is reached."
    )
    num: PositiveInt | None = Field(
        None,
        description="For 'skills', the number of skills, or of dimensions if they are continuous; for "
        "'repeated', the largest number of repetitions.",
    )
    continuous: bool = Field(
        False,
        description="For 'skills': draw skills from the unit sphere instead of one-hot vectors.",
    )

    of: str | None = Field(
        None, description="For 'goals': key of the vector observation that must reach the goal."
    )
    low: tuple[float, ...] | None = Field(
        None,
        description="For 'goals': lowest value of each dimension of goals, which are drawn uniformly; null "
        "to draw states of train.data as goals.",
    )
    high: tuple[float, ...] | None = Field(
        None,
        description="For 'goals': highest value of each dimension of goals that are drawn uniformly.",
    )
    tolerance: PositiveFloat = Field(
        0.1, description="For 'goals': largest distance at which a goal counts as reached."
    )

    @model_validator(mode="after")
    def _has_a_box(self) -> Self:
        low, high = self.low or (), self.high or ()
        if (self.type == "goals") != (self.of is not None):
            raise ValueError(
                "of: the wrapper 'goals' needs the key of the observation that reaches the goal; all "
                "other wrappers must leave it out"
            )
        if len(low) != len(high) or any(a > b for a, b in zip(low, high, strict=True)):
            raise ValueError(
                f"low {list(low)} and high {list(high)}: give both, with the smaller numbers in low"
            )
        return self

    @model_validator(mode="after")
    def _has_a_number(self) -> Self:
        if (self.type in ("skills", "repeated")) != (self.num is not None):
            raise ValueError(
                f"num is missing: the wrapper '{self.type}' needs it"
                if self.num is None
                else f"num is {self.num}, but the wrapper '{self.type}' does not use it: leave it out"
            )
        return self

    @property
    def needs_points(self) -> bool:
        """True if goals are states of the demonstrations."""
        return self.type == "goals" and self.low is None

    def described(self, discount: float, points: Sequence[Sequence[float]] = ()) -> dict[str, Any]:
        """Return the wrapper's entry of env_args.

        Args:
            discount: discount factor of the algorithm.
            points: states of the demonstrations from which goals are drawn, if the wrapper needs them.
        """
        own = {key: value for key, value in self.to_dict().items() if value not in (None, False)}
        if self.type != "goals":
            own.pop("tolerance")
        if self.needs_points:
            own["points"] = [list(point) for point in points]
        return {**own, "discount": discount} if self.type == "repeated" else own


class OnlineConfig(Section):
    """Online reinforcement learning. If enabled, an epoch has ``experiment.epoch_every_n_steps`` environment steps."""

    enabled: bool = Field(
        False,
        description="Learn from steps in an environment, in addition to train.data if there are any.",
    )
    env: str | OpenSection | None = Field(
        None,
        description="Environment to learn in: a gymnasium name, or env_args as in demonstration files; null "
        "for the environment of train.data.",
    )
    wrappers: tuple[WrapperConfig, ...] = Field(
        (),
        description="Wrappers of the environment, the innermost first; they are saved in env_args.",
    )
    num_envs: PositiveInt = Field(1, description="Number of copies of the environment.")
    horizon: PositiveInt | None = Field(
        None,
        description="Steps after which an episode is truncated; null for experiment.rollout.horizon.",
    )
    end_at_success: bool = Field(
        False, description="End an episode, as a terminal, when it succeeds."
    )
    num_workers: NonNegativeInt = Field(
        0,
        description="Number of processes that collect steps; 0 to collect in the training process.",
    )
    max_staleness: NonNegativeInt | None = Field(
        None,
        description=(
            "With workers: collect steps during the updates, with weights that are at most this "
            "number of updates old; null to alternate between collecting and updates."
        ),
    )
    acting: Literal["collector", "central"] = Field(
        "collector",
        description=(
            "With workers: 'collector' gives each worker a copy of the policy; with 'central' "
            "workers have no network and request their actions from the policy_workers."
        ),
    )
    policy_workers: PositiveInt = Field(
        1, description="With acting 'central': number of processes that compute actions."
    )
    ring: PositiveInt = Field(
        1,
        description=(
            "With acting 'central': number of groups into which the environments of a worker are "
            "divided; while one group waits for actions, the next one steps."
        ),
    )
    push_every_s: NonNegativeFloat = Field(
        0.0,
        description=(
            "With max_staleness: smallest number of seconds between two versions of the weights sent "
            "to workers; 0 sends a new version at each request, while at most two versions are in "
            "use."
        ),
    )
    step_timeout_s: PositiveFloat = Field(
        60.0,
        description="With workers: seconds that a step or a reset may take; then the worker counts as hung "
        "and is replaced.",
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
        description="Source of the actions before the first update: 'random' (uniform), 'policy', 'scripted' "
        "(the scripted expert of the task), or 'module:function', a function of an observation.",
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
            "With obs_normalization, for off-policy algorithms without demonstrations: compute the "
            "statistics from all steps so far ('running'), or only from the steps before the first "
            "update ('warmup')."
        ),
    )
    curriculum: CurriculumConfig = Field(
        CurriculumConfig(), description="Curriculum: stages of the environment, from easy to hard."
    )
    demo_ratio: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Fraction of the samples of each batch that come from train.data.",
    )
    pretrain_updates: NonNegativeInt = Field(
        0, description="Updates on only train.data before the first environment step."
    )

    @property
    def repeats(self) -> bool:
        """True if an action may last several environment steps, as with the wrapper ``repeated``."""
        return any(wrapper.type == "repeated" for wrapper in self.wrappers)
