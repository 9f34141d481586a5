"""Intrinsic curiosity module (ICM): a bonus for transitions whose outcome a forward model predicts badly.

Pathak, Agrawal, Efros, Darrell, "Curiosity-driven Exploration by Self-supervised Prediction", ICML 2017
(arXiv:1705.05363). With features p of an observation, a forward model f and an inverse model g:

    forward error  e = mean |f(p(s), a) - p(s')|^2 / 2, without gradient for p               -> ICM.errors
    inverse error  mean |g(p(s), p(s')) - a|^2 / 2, for a choice the cross-entropy           -> ICM.inverse_errors
    loss           b E[ e ] + (1 - b) E[ inverse error ], b = forward_share                  -> ICM.loss
    reward         e / moving mean of e, at most 5                                           -> ICM.reward

Features learn from the inverse model alone, so they contain what actions change. Without features
(``num_features`` null), f predicts the whitened observation and there is no inverse model. The bonus of a replayed
batch is computed before the update with it. Departures: the bonus is divided by a moving mean (rate 0.01), so that it
keeps its size while the model learns; the policy's loss has no weight (the paper's lambda).
"""

from typing import Any, cast

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
from imitate.config import OptimizerConfig, Section
from imitate.config.optimizer import adam
from imitate.functional.losses import masked_mean
from imitate.models.mlp import MLP
from imitate.models.moments import RowMoments

CLIP = 5.0
"""Largest magnitude of whitened observations."""


class ICMConfig(AuxiliaryConfig):
    """Options of an auxiliary of type ``icm``."""

    model_config = {**Section.model_config}

    reward: float = Field(
        0.1, ge=0, description="weight of the reward bonus, whose mean is about 1"
    )
    layer_dims: tuple[PositiveInt, ...] = Field(
        (256,), description="widths of the hidden layers of each network"
    )
    num_features: PositiveInt | None = Field(
        64,
        description="number of learned features that the forward model predicts; null: it predicts the whitened "
        "observation",
    )
    forward_share: float = Field(
        0.2,
        gt=0,
        le=1,
        description="share of the forward error in the loss; the rest is the inverse error",
    )
    optimizer: OptimizerConfig = Field(
        adam(1e-3), description="optimizer of features, forward model and inverse model"
    )


@register("icm", ICMConfig)
class ICM(Auxiliary):
    """Features, forward model and inverse model."""

    def __init__(self, config: ICMConfig, context: AuxiliaryContext) -> None:
        super().__init__(config, context)
        self.encoder = context.encoder()
        seen = self.encoder.output_dim
        self.moments = RowMoments(seen)
        size = config.num_features or seen
        self.features = _network(seen, config.layer_dims, size) if config.num_features else None
        self.forward_model = _network(size + context.ac_dim, config.layer_dims, size)
        self.inverse_model = None
        if self.features is None:
            self.encoder.requires_grad_(False)
        else:
            self.inverse_model = _network(2 * size, config.layer_dims, context.ac_dim)
            nn.init.zeros_(cast(Tensor, self.inverse_model[-1].weight))
        self._num_choices = context.num_choices
        self._latest: tuple[Any, Tensor] | None = None
        self.relative = RelativeErrors()
        self.followed = [self.moments, self.relative]

    def seen(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return features (B, D), or whitened observations, before and after the transitions."""
        pairs = {key: torch.cat([now, batch["next_obs"][key]]) for key, now in batch["obs"].items()}
        seen: Tensor = self.encoder(pairs)
        if self.features is None:
            seen = ((seen - self.moments.mean) / self.moments.std).clamp(-CLIP, CLIP)
        else:
            seen = self.features(seen)
        before, after = seen.chunk(2)
        return before, after

    def errors(self, before: Tensor, actions: Tensor, after: Tensor) -> Tensor:
        """Return forward errors (B,) from features before and after, which get no gradient."""
        predicted = self.forward_model(torch.cat([before.detach(), actions], dim=-1))
        return 0.5 * (predicted - after.detach()).square().mean(-1)  # type: ignore[no-any-return]

    def inverse_errors(self, before: Tensor, actions: Tensor, after: Tensor) -> Tensor:
        """Return inverse errors (B,)."""
        assert self.inverse_model is not None
        predicted = self.inverse_model(torch.cat([before, after], dim=-1))
        choices, errors = self._num_choices, torch.zeros(())
        if choices < actions.shape[-1]:
            errors = 0.5 * (predicted - actions)[:, choices:].square().mean(-1)
        if choices:
            scores, chosen = predicted[:, :choices], actions[:, :choices].argmax(-1)
            errors = errors + nn.functional.cross_entropy(scores, chosen, reduction="none")
        return errors

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted sum of both errors."""
        before, after = self.seen(batch)
        actions, mask = batch["actions"], batch.get("mask")
        errors = self.errors(before, actions, after)
        self._latest = batch["next_obs"], errors.detach()
        forward = masked_mean(errors, mask)
        if self.inverse_model is None:
            return forward, {"Loss": forward}
        inverse = masked_mean(self.inverse_errors(before, actions, after), mask)
        share = self.config.forward_share
        loss = share * forward + (1.0 - share) * inverse
        return loss, {"Loss": loss, "Forward_Loss": forward, "Inverse_Loss": inverse}

    @torch.no_grad()
    def _known(self, batch: Batch) -> Tensor:
        """Return forward errors (B,); reuse the errors of the latest loss for the same batch."""
        if self._latest is not None and self._latest[0] is batch["next_obs"]:
            return self._latest[1]
        before, after = self.seen(batch)
        return self.errors(before, batch["actions"], after)

    @torch.no_grad()
    def reward(self, batch: Batch) -> Tensor:
        """Return the bonus (B,), which is never negative."""
        bonus: Tensor = self.relative(self._known(batch))
        return bonus

    @torch.no_grad()
    def follow(self, batch: Batch) -> None:
        """Update the moving mean of errors, and the moments of observations if they are predicted."""
        self.relative.add(self._known(batch))
        if self.features is None:
            self.moments.add(self.encoder(batch["next_obs"]))
        self._latest = None


def _network(inputs: int, layer_dims: tuple[int, ...], outputs: int) -> nn.Sequential:
    mlp = MLP(inputs, layer_dims)
    return nn.Sequential(mlp, nn.Linear(mlp.output_dim, outputs))
