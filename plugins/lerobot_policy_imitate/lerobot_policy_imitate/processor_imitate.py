"""Steps before and after a policy of imitate: they only rename and move values, because the policy normalizes."""

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
    """Build the steps before and after the policy, without normalization.

    Args:
        config: the policy's configuration.
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
