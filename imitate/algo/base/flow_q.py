"""Sections of algorithms that value the actions of a flow: networks as in the code of flow Q-learning's authors."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from imitate.algo.base.rl_sections import CriticConfig, CriticEnsembleConfig
from imitate.algo.base.sections import LayerDims
from imitate.config import Section
from imitate.models.critics import Activation

WIDTHS = (512, 512, 512, 512)


class FlowFieldConfig(Section):
    """Flow that clones the data."""

    layer_dims: LayerDims = Field(WIDTHS, description="widths of the hidden layers")
    num_steps: int = Field(10, ge=1, description="number of Euler steps from noise to an action")


class FlowChoiceConfig(FlowFieldConfig):
    """Flow that clones the data, and the choice among its samples."""

    num_candidates: int = Field(
        32, ge=1, description="N: number of samples of which the policy takes the best"
    )


class FlowCriticConfig(CriticConfig):
    """Critics with GELU, normalized after it."""

    activation: ClassVar[Activation] = "gelu"
    layer_dims: LayerDims = Field(WIDTHS, description="widths of the hidden layers")
    layer_norm: bool = Field(True, description="layer normalization after each GELU")


class MeanCriticConfig(FlowCriticConfig):
    """Critics whose mean is the value."""

    ensemble: CriticEnsembleConfig = Field(CriticEnsembleConfig(weight=0.5))
