"""The section ``train.online``: online reinforcement learning."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from imitate.config.curriculum import CurriculumConfig
from imitate.config.section import OpenSection, Section


class PrioritizedConfig(Section):
    """Prioritized replay: steps with large TD errors are sampled more often."""

    enabled: bool = Field(False, description="Sample steps by their TD errors.")
    alpha: float = Field(
        0.6, ge=0, le=1, description="0: uniform sampling; 1: in proportion to errors."
    )
    beta: float = Field(
        0.4,
        ge=0,
        le=1,
        description="Importance-sampling correction in the loss at the start; rises to 1 over the training.",
    )


class HindsightConfig(Section):
    """Hindsight experience replay: goals of replayed steps are replaced by goals achieved later."""

    enabled: bool = Field(False, description="Replace goals of replayed steps.")
    share: float = Field(
        0.8,
        ge=0,
        le=1,
        description="Share of a batch with replaced goals; the paper's k is k / (k + 1), 0.8 for 4.",
    )
    strategy: Literal["future", "final", "episode"] = Field(
        "future",
        description="New goal: achieved at a later step of the episode, at its last one, "
        "or at any.",
    )
    ends_at_goal: bool | None = Field(
        None,
        description="End an episode, as a terminal, where it reaches its goal; null: "
        "train.online.end_at_success.",
    )


class OnlineConfig(Section):
    """Online reinforcement learning. An epoch is then ``experiment.epoch_every_n_steps`` environment steps."""

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
    end_at_success: bool = Field(False, description="End an episode at success, as a terminal.")
    num_workers: NonNegativeInt = Field(
        0, description="Processes that collect; 0: the training process itself."
    )
    max_staleness: NonNegativeInt | None = Field(
        None,
        description="With workers: collect during the updates, with weights at most so many "
        "updates old; null: learning waits for the steps.",
    )
    acting: Literal["collector", "central"] = Field(
        "collector",
        description="With workers: each has a copy of the policy, or all ask policy_workers for "
        "actions, which need no network in the workers.",
    )
    policy_workers: PositiveInt = Field(
        1, description="With acting 'central': processes that compute actions."
    )
    ring: PositiveInt = Field(
        1,
        description="With acting 'central': groups that the environments of a worker form; while "
        "one waits for actions, the next one steps.",
    )
    push_every_s: NonNegativeFloat = Field(
        0.0,
        description="With max_staleness: least seconds between two versions of the weights that workers "
        "get; 0: one for each request, as long as no more than two are in use.",
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
        "random", description="Actions before the first update: uniform, or the policy's."
    )
    update_ratio: NonNegativeFloat = Field(
        1.0, description="Updates per environment step, for off-policy algorithms."
    )
    buffer_size: PositiveInt = Field(
        1_000_000,
        description="Capacity of the replay buffer in environment steps, for off-policy algorithms.",
    )
    prioritized: PrioritizedConfig = Field(
        PrioritizedConfig(), description="Prioritized replay, for algorithms with critics."
    )
    hindsight: HindsightConfig = Field(
        HindsightConfig(), description="Hindsight experience replay, for off-policy algorithms."
    )
    save_buffer: bool = Field(
        True, description="Save the replay buffer beside last.pth, to resume with it."
    )
    obs_statistics: Literal["running", "warmup"] = Field(
        "running",
        description="With obs_normalization, for off-policy algorithms without demonstrations: statistics of all "
        "steps so far, or of those before the first update alone.",
    )
    curriculum: CurriculumConfig = Field(
        CurriculumConfig(), description="Stages of the environment, from easy to hard."
    )
    demo_ratio: float = Field(
        0.0, ge=0, le=1, description="Share of each batch that comes from train.data."
    )
    pretrain_updates: NonNegativeInt = Field(
        0, description="Updates on train.data alone before the first environment step."
    )
