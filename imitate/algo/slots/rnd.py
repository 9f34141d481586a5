"""Random network distillation (RND): an exploration bonus for states in which a network predicts random features badly.

Burda, Edwards, Storkey, Klimov, "Exploration by Random Network Distillation", ICLR 2019 (arXiv:1810.12894). With a
fixed random network f, a predictor p, and x the next observation, whitened by running statistics and clipped to +-5:

    loss    E[ |p(x) - f(x)|^2 ], mean over the features                                      -> RND.loss
    reward  |p(x) - f(x)|^2 / moving mean of it, at most 5                                    -> RND.reward

The predictor becomes accurate in states that are visited often, so new states have a larger bonus. The bonus of a
replayed batch is computed before the update with it. Departures: the bonus is divided by its own moving mean (rate
0.01) instead of the standard deviation of its discounted return over the whole training, so that it has the same
meaning for a replay buffer and keeps its size while the predictor learns; with image observations, both networks see
the features of one fixed random encoder. The bonus is added to the reward, with the same discount and the same
terminals.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from imitate.algo.slots.auxiliary import (
    Auxiliary,
    AuxiliaryConfig,
    AuxiliaryContext,
    Batch,
    RelativeErrors,
    register,
)
from imitate.config import Section
from imitate.models.mlp import MLP
from imitate.models.moments import RowMoments

CLIP = 5.0
"""Largest magnitude of whitened inputs."""


class RNDConfig(AuxiliaryConfig):
    """Options of an auxiliary of type ``rnd``."""

    model_config = {**Section.model_config}

    reward: float = Field(
        0.1, ge=0, description="weight of the reward bonus, whose mean is about 1"
    )
    layer_dims: tuple[PositiveInt, ...] = Field(
        (128, 128),
        description="widths of the hidden layers of the random network and of its predictor",
    )
    num_features: int = Field(64, ge=1, description="number of random features to predict")


@register("rnd", RNDConfig)
class RND(Auxiliary):
    """Fixed random network and its predictor."""

    def __init__(self, config: RNDConfig, context: AuxiliaryContext) -> None:
        super().__init__(config, context)
        self.encoder = context.encoder().requires_grad_(False)
        self.target = self._network(config).requires_grad_(False)
        self.predictor = self._network(config)
        self.inputs, self.relative = RowMoments(self.encoder.output_dim), RelativeErrors()
        self._latest: tuple[Any, Tensor, Tensor] | None = None
        self.followed = [self.inputs, self.relative]

    def _network(self, config: RNDConfig) -> nn.Sequential:
        mlp = MLP(self.encoder.output_dim, config.layer_dims)
        return nn.Sequential(mlp, nn.Linear(mlp.output_dim, config.num_features))

    def train(self, mode: bool = True) -> RND:
        """Switch only the predictor to training mode; the fixed networks never change."""
        super().train(mode)
        self.encoder.eval()
        self.target.eval()
        return self

    def _squared_errors(self, batch: Batch) -> Tensor:
        """Return squared errors (B,), averaged over the features."""
        with torch.no_grad():
            seen: Tensor = self.encoder(batch["next_obs"])
            x = ((seen - self.inputs.mean) / self.inputs.std).clamp(-CLIP, CLIP)
            wanted: Tensor = self.target(x)
        errors: Tensor = (self.predictor(x) - wanted).square().mean(-1)
        self._latest = batch["next_obs"], seen, errors.detach()
        return errors

    def _known(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return encoded observations (B, D) and errors (B,); reuse those of the latest loss for the same batch."""
        if self._latest is None or self._latest[0] is not batch["next_obs"]:
            self._squared_errors(batch)
        assert self._latest is not None
        return self._latest[1:]

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean squared error of the predictor."""
        loss = self._squared_errors(batch).mean()
        return loss, {"Loss": loss}

    @torch.no_grad()
    def reward(self, batch: Batch) -> Tensor:
        """Return the bonus (B,), which is never negative."""
        bonus: Tensor = self.relative(self._known(batch)[1])
        return bonus

    @torch.no_grad()
    def follow(self, batch: Batch) -> None:
        """Update the running statistics of inputs and errors."""
        seen, errors = self._known(batch)
        self.relative.add(errors)
        self.inputs.add(seen)
        self._latest = None
