"""Steps before and behind a policy of imitate: it normalizes by itself, so they only move and name values."""

from __future__ import annotations

from typing import Any

from lerobot.processor import (
    AddBatchDimensionProcessorStep,
    DeviceProcessorStep,
    PolicyProcessorPipeline,
    RenameObservationsProcessorStep,
)
from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action

from lerobot_policy_imitate.configuration_imitate import ImitateConfig


def make_imitate_pre_post_processors(
    config: ImitateConfig, dataset_stats: Any = None
) -> tuple[PolicyProcessorPipeline, PolicyProcessorPipeline]:
    """Build both, without normalization.

    Args:
        config: of the policy.
        dataset_stats: not used.
    """
    before = PolicyProcessorPipeline(
        steps=[
            RenameObservationsProcessorStep(rename_map={}),
            AddBatchDimensionProcessorStep(),
            DeviceProcessorStep(device=config.device),
        ],
        name="policy_preprocessor",
    )
    behind = PolicyProcessorPipeline(
        steps=[DeviceProcessorStep(device="cpu")],
        name="policy_postprocessor",
        to_transition=policy_action_to_transition,
        to_output=transition_to_policy_action,
    )
    return before, behind
