"""The section ``train.online``: learning from steps that the policy takes itself."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from imitate.config.section import OpenSection, Section


class PrioritizedConfig(Section):
    """Replay of the steps whose values are most wrong."""

    enabled: bool = Field(False, description="Whether steps are drawn by their errors.")
    alpha: float = Field(
        0.6, ge=0, le=1, description="0 draws uniformly, 1 in proportion to errors."
    )
    beta: float = Field(
        0.4, ge=0, le=1, description="Correction of that in the loss at the start; at last it is 1."
    )


class HindsightConfig(Section):
    """Replay of steps as if what came later had been their goal, in goal environments of gymnasium."""

    enabled: bool = Field(False, description="Whether steps are given other goals.")
    share: float = Field(
        0.8, ge=0, le=1, description="Of a batch; the paper's k goals are k / (k + 1), 0.8 for 4."
    )
    strategy: Literal["future", "final", "episode"] = Field(
        "future",
        description="What becomes a goal: what a later step of the episode achieved, its last one, "
        "or any.",
    )
    ends_at_goal: bool | None = Field(
        None,
        description="Whether reaching its goal ends an episode there, as a terminal; null: "
        "train.online.end_at_success.",
    )


class OnlineConfig(Section):
    """Learning in an environment. An epoch is then ``experiment.epoch_every_n_steps`` environment steps."""

    enabled: bool = Field(
        False, description="Learn from steps in an environment rather than from files alone."
    )
    env: str | OpenSection | None = Field(
        None,
        description="Environment to learn in: a gymnasium name, or env_args as in demonstration "
        "files; null: that of train.data.",
    )
    num_envs: PositiveInt = Field(1, description="Copies of the environment.")
    horizon: PositiveInt | None = Field(
        None,
        description="Steps after which an episode is cut by the clock; null: "
        "experiment.rollout.horizon.",
    )
    end_at_success: bool = Field(
        False, description="Whether success ends an episode, as a terminal."
    )
    num_workers: NonNegativeInt = Field(
        0, description="Processes that collect; 0: the training process itself."
    )
    max_staleness: NonNegativeInt | None = Field(
        None,
        description="With workers: collect while learning goes on, with weights at most so many "
        "updates old; null: learning waits for the steps.",
    )
    step_timeout_s: PositiveFloat = Field(
        60.0,
        description="With workers: one that takes longer for a step or a reset counts as hung and "
        "is replaced.",
    )
    collect_steps: PositiveInt = Field(
        1, description="Steps of each environment between two rounds of updates."
    )
    warmup_steps: NonNegativeInt = Field(
        1000, description="Environment steps before the first update."
    )
    warmup_policy: Literal["random", "policy"] = Field(
        "random", description="Who acts before the first update."
    )
    update_ratio: NonNegativeFloat = Field(
        1.0, description="Updates per environment step, for algorithms that replay."
    )
    buffer_size: PositiveInt = Field(
        1_000_000, description="Steps that are remembered, for algorithms that replay."
    )
    prioritized: PrioritizedConfig = Field(
        PrioritizedConfig(), description="Prioritized replay, for algorithms with critics."
    )
    hindsight: HindsightConfig = Field(
        HindsightConfig(), description="Hindsight experience replay, for algorithms that replay."
    )
    save_buffer: bool = Field(
        True, description="Save the remembered steps beside last.pth, to resume with them."
    )
    obs_statistics: Literal["running", "warmup"] = Field(
        "running",
        description="With obs_normalization, for algorithms that replay and have no demonstrations: statistics of all "
        "steps so far, or of those before the first update alone.",
    )
    demo_ratio: float = Field(
        0.0, ge=0, le=1, description="Share of each batch that comes from train.data."
    )
    pretrain_updates: NonNegativeInt = Field(
        0, description="Updates on train.data alone before the first environment step."
    )
