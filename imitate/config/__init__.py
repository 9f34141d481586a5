"""Configuration: robomimic's JSON tree, typed, checked and frozen.

The public names are imported on first use, because a worker that only searches for installed components needs none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "ActionConfig": "imitate.config.train",
    "AlgoSection": "imitate.config.algorithms",
    "BaseConfig": "imitate.config.base_config",
    "ClusterConfig": "imitate.config.experiment",
    "Config": "imitate.config.config",
    "DataNeeds": "imitate.config.data_needs",
    "DatasetConfig": "imitate.config.train",
    "EncoderConfig": "imitate.config.observation",
    "ExperimentConfig": "imitate.config.experiment",
    "GoalShares": "imitate.config.data_needs",
    "HindsightGoals": "imitate.config.data_needs",
    "LearningRateConfig": "imitate.config.optimizer",
    "MetaConfig": "imitate.config.experiment",
    "ModalityGroup": "imitate.config.observation",
    "ObservationConfig": "imitate.config.observation",
    "OpenSection": "imitate.config.section",
    "OptimizerConfig": "imitate.config.optimizer",
    "RegularizationConfig": "imitate.config.optimizer",
    "Returns": "imitate.config.data_needs",
    "Schedules": "imitate.config.schedule",
    "Section": "imitate.config.section",
    "Sequences": "imitate.config.data_needs",
    "Subgoals": "imitate.config.data_needs",
    "TrainConfig": "imitate.config.train",
    "TrainingSet": "imitate.config.data_needs",
    "Transitions": "imitate.config.data_needs",
    "load_config": "imitate.config.loading",
    "located_data": "imitate.config.data_paths",
}

if TYPE_CHECKING:
    from imitate.config.algorithms import AlgoSection
    from imitate.config.base_config import BaseConfig
    from imitate.config.config import Config
    from imitate.config.data_needs import (
        DataNeeds,
        GoalShares,
        HindsightGoals,
        Returns,
        Sequences,
        Subgoals,
        TrainingSet,
        Transitions,
    )
    from imitate.config.data_paths import located_data
    from imitate.config.experiment import ClusterConfig, ExperimentConfig, MetaConfig
    from imitate.config.loading import load_config
    from imitate.config.observation import EncoderConfig, ModalityGroup, ObservationConfig
    from imitate.config.optimizer import LearningRateConfig, OptimizerConfig, RegularizationConfig
    from imitate.config.schedule import Schedules
    from imitate.config.section import OpenSection, Section
    from imitate.config.train import ActionConfig, DatasetConfig, TrainConfig

__all__ = [
    "ActionConfig",
    "AlgoSection",
    "BaseConfig",
    "ClusterConfig",
    "Config",
    "DataNeeds",
    "DatasetConfig",
    "EncoderConfig",
    "ExperimentConfig",
    "GoalShares",
    "HindsightGoals",
    "LearningRateConfig",
    "MetaConfig",
    "ModalityGroup",
    "ObservationConfig",
    "OpenSection",
    "OptimizerConfig",
    "RegularizationConfig",
    "Returns",
    "Schedules",
    "Section",
    "Sequences",
    "Subgoals",
    "TrainConfig",
    "TrainingSet",
    "Transitions",
    "load_config",
    "located_data",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'imitate.config' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
