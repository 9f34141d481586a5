"""Mutual information: an auxiliary loss that makes features tell as much as possible about those of a later step.

Hjelm et al., "Learning Deep Representations by Mutual Information Estimation and Maximization" (Deep InfoMax), ICLR
2019 (arXiv:1808.06670), between steps in time as in Anand et al., "Unsupervised State Representation Learning in Atari"
(ST-DIM), NeurIPS 2019 (arXiv:1906.08226). With features phi and K ``steps``:

    loss    -I(phi(o_t), a_t; phi(o_t+K))              -> MutualInformation.loss, models.mutual_information
            -I(a_t; phi(o_t+K) | phi(o_t)) with ``given_observation``: what the action tells beyond the observation

Departures: features are of whole observations, without a second loss on patches, and the action belongs to the input.
With ``ml``, and for the samples of the conditional form, the later features are constants, because features without a
scale could make any Gaussian density as large as they like.
"""

from __future__ import annotations

from typing import cast

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from imitate.algo.slots.auxiliary import (
    Auxiliary,
    AuxiliaryContext,
    Batch,
    SharingAuxiliaryConfig,
    register,
    window_of,
)
from imitate.config import Section
from imitate.models.mutual_information import Estimator, InformationEstimator


class MutualInformationConfig(SharingAuxiliaryConfig):
    """Entry of type ``mutual_information``."""

    model_config = {**Section.model_config}

    estimator: Estimator = Field("jsd", description="kind of bound")
    given_observation: bool = Field(
        False, description="measure only what the action adds to what the observation tells"
    )
    steps: int = Field(1, ge=1, description="K, steps between the two observations")
    layer_dims: tuple[PositiveInt, ...] = Field((256, 256), description="hidden layers")
    average_rate: float = Field(
        0.01, gt=0, le=1, description="rate of the moving average in the gradient of 'dv'"
    )

    @model_validator(mode="after")
    def _conditional(self) -> MutualInformationConfig:
        if self.given_observation and self.estimator == "dv":
            raise ValueError(
                "estimator 'dv' has no conditional form: choose 'jsd', 'kld' or 'ml' with given_observation"
            )
        return self

    @property
    def num_steps(self) -> int:
        """K, number of transitions in a row that the loss is computed from."""
        return self.steps


@register("mutual_information", MutualInformationConfig)
class MutualInformation(Auxiliary):
    """Features and an estimator of their mutual information."""

    def __init__(self, config: MutualInformationConfig, context: AuxiliaryContext) -> None:
        super().__init__(config, context)
        self.features = self.features_of(context)
        size, ac_dim = self.features.output_dim, context.ac_dim
        self.estimator = InformationEstimator(
            ac_dim if config.given_observation else size + ac_dim,
            size,
            condition_dim=size if config.given_observation else 0,
            estimator=config.estimator,
            layer_dims=config.layer_dims,
            average_rate=config.average_rate,
        )
        self.followed = [self.estimator.moments]

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the negative bound of the mutual information."""
        last = self.config.steps
        window, goal = window_of(batch, last), batch.get("goal_obs")
        ends = {key: value[:, [0, last]] for key, value in window["obs"].items()}
        before, after = self.features.of_windows(ends, goal).float().unbind(1)
        actions, mask = window["actions"][:, 0], window["mask"][:, last - 1]
        if self.config.given_observation:
            loss, value = self.estimator.loss(actions, after, before, mask)
        else:
            joined = torch.cat([before, actions], dim=-1)
            loss, value = self.estimator.loss(joined, after, None, mask)
        return loss, {"Loss": loss, "Mutual_Information": value}

    @torch.no_grad()
    def follow(self, batch: Batch) -> None:
        """Update the moments of the later features, if the estimator needs them."""
        config = cast(MutualInformationConfig, self.config)
        if config.estimator == "ml" and not config.given_observation:
            after = {k: x[:, -1] for k, x in window_of(batch, config.steps)["obs"].items()}
            self.estimator.follow(self.features(after, batch.get("goal_obs")).float())
