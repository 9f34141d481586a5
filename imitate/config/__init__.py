"""Configuration: robomimic's JSON tree, typed, checked and frozen."""

from __future__ import annotations

from imitate.config.algo_section import AlgoSection
from imitate.config.base_config import BaseConfig
from imitate.config.cluster import ClusterConfig
from imitate.config.config import Config
from imitate.config.data_needs import (
    DataNeeds,
    Returns,
    Sequences,
    Subgoals,
    TrainingSet,
    Transitions,
)
from imitate.config.data_paths import located_data
from imitate.config.experiment import ExperimentConfig
from imitate.config.loading import load_config
from imitate.config.meta import MetaConfig
from imitate.config.observation import EncoderConfig, ModalityGroup, ObservationConfig
from imitate.config.optimizer import LearningRateConfig, OptimizerConfig, RegularizationConfig
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
    "LearningRateConfig",
    "MetaConfig",
    "ModalityGroup",
    "ObservationConfig",
    "OpenSection",
    "OptimizerConfig",
    "RegularizationConfig",
    "Returns",
    "Section",
    "Sequences",
    "Subgoals",
    "TrainConfig",
    "TrainingSet",
    "Transitions",
    "load_config",
    "located_data",
]
