"""Inverse model: an auxiliary loss for predicting the action between two observations from their features.

The inverse half of Pathak, Agrawal, Efros, Darrell, "Curiosity-driven Exploration by Self-supervised Prediction", ICML
2017 (arXiv:1705.05363); with ``steps`` k > 1 the multi-step form of Islam et al., "Principled Offline RL in the
Presence of Rich Exogenous Information", ICML 2023 (arXiv:2211.00164). With features phi and a network g:

    loss    mean over A of (g(phi(o_t), phi(o_t+k)) - a_t)^2, or the cross-entropy of a choice       -> Inverse.loss

Features must contain what the robot influences, and may lose other information. Departures: the squared error is a
mean over the action's dimensions without the factor 1/2, as the other losses here; k is fixed instead of drawn.
"""

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from imitate.algo.slots.auxiliary import (
    Auxiliary,
    AuxiliaryContext,
    Batch,
    SharingAuxiliaryConfig,
    register,
)
from imitate.config import Section
from imitate.functional.losses import masked_mean
from imitate.models.mlp import MLP


class InverseConfig(SharingAuxiliaryConfig):
    """Options of an auxiliary of type ``inverse``."""

    model_config = {**Section.model_config}

    layer_dims: tuple[PositiveInt, ...] = Field((256,), description="widths of the hidden layers")
    steps: int = Field(1, ge=1, description="k: number of steps between the two observations")

    @property
    def num_steps(self) -> int:
        """K: the loss is computed from this number of consecutive transitions."""
        return self.steps


@register("inverse", InverseConfig)
class Inverse(Auxiliary):
    """Network that predicts an action from the features of the observations before and after it."""

    def __init__(self, config: InverseConfig, context: AuxiliaryContext) -> None:
        super().__init__(config, context)
        self.features = self.features_of(context)
        self.num_choices = context.num_choices
        mlp = MLP(2 * self.features.output_dim, config.layer_dims)
        self.model = nn.Sequential(mlp, nn.Linear(mlp.output_dim, context.ac_dim))

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the error of the predicted actions."""
        before, after, mask = batch["obs"], batch["next_obs"], batch.get("mask")
        if self.config.steps > 1:
            window, last = batch["window"], self.config.steps
            after = {key: value[:, last] for key, value in window["obs"].items()}
            mask = window["mask"][:, last - 1]
        goal = batch.get("goal_obs")
        pair = torch.cat([self.features(before, goal), self.features(after, goal)], dim=-1)
        predicted: Tensor = self.model(pair)
        loss = masked_mean(self._errors(predicted, batch["actions"]), mask)
        return loss, {"Loss": loss}

    def _errors(self, predicted: Tensor, actions: Tensor) -> Tensor:
        """Return errors (B,) of predicted actions (B, A)."""
        choices = self.num_choices
        errors = torch.zeros_like(predicted[:, 0])
        if choices:
            logits, chosen = predicted[:, :choices], actions[:, :choices].argmax(-1)
            errors = nn.functional.cross_entropy(logits, chosen, reduction="none")
        if choices < actions.shape[-1]:
            errors = errors + (predicted - actions)[:, choices:].square().mean(-1)
        return errors
