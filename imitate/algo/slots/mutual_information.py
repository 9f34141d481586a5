"""Mutual information: an auxiliary loss that maximizes the information of features about the features of a later step.

Hjelm et al., "Learning Deep Representations by Mutual Information Estimation and Maximization" (Deep InfoMax), ICLR
2019 (arXiv:1808.06670), between steps in time as in Anand et al., "Unsupervised State Representation Learning in Atari"
(ST-DIM), NeurIPS 2019 (arXiv:1906.08226). With features phi and K ``steps``:

    loss    -I(phi(o_t), a_t; phi(o_t+K))              -> MutualInformation.loss, InformationEstimator
            -I(a_t; phi(o_t+K) | phi(o_t)) with ``given_observation``: information of the action alone

Departures: features are of whole observations, without a second loss on patches, and the action is an input of the
critic T. With the estimator ``ml``, and for the samples of the conditional form, the loss has no gradient through the
later features: otherwise the features could shrink together, which makes their Gaussian density arbitrarily large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, cast

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn.functional import softplus

from imitate.algo.slots.auxiliary import (
    Auxiliary,
    AuxiliaryContext,
    Batch,
    SharingAuxiliaryConfig,
    module_of,
    register,
    window_of,
)
from imitate.config import Section
from imitate.functional.losses import gaussian_log_prob, masked_mean
from imitate.models.mlp import MLP, MultiHeadMLP
from imitate.models.moments import RowMoments

Estimator = Literal["dv", "kld", "jsd", "ml"]
HIGHEST = 20.0
"""Largest value of the critic T."""
LOG_VAR = (-10.0, 5.0)
"""Limits of log variances."""


class ConditionalGaussian(nn.Module):
    """Network that predicts a diagonal Gaussian over y (B, D) from inputs (B, C)."""

    def __init__(self, input_dim: int, size: int, layer_dims: Sequence[int]) -> None:
        super().__init__()
        self.net = MultiHeadMLP(input_dim, layer_dims, {"mean": size, "log_var": size})

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance (B, D)."""
        parts = self.net(x)
        return parts["mean"], parts["log_var"].clamp(*LOG_VAR).exp()

    def log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log densities (B,) of y."""
        return gaussian_log_prob(y, *self(x))


class InformationEstimator(nn.Module):
    """Mutual information of x (B, X) and y (B, Y), optionally given c (B, C).

    Args:
        x_dim: X, size of x.
        y_dim: Y, size of y.
        condition_dim: C, size of c, or 0 if there is no condition.
        estimator: bound of the mutual information: 'dv', 'kld', 'jsd' or 'ml'.
        layer_dims: widths of the hidden layers of all networks.
        average_rate: rate of the moving average of ``dv``.
    """

    average: Tensor

    def __init__(
        self,
        x_dim: int,
        y_dim: int,
        *,
        condition_dim: int = 0,
        estimator: Estimator = "jsd",
        layer_dims: Sequence[int] = (256, 256),
        average_rate: float = 0.01,
    ) -> None:
        super().__init__()
        self.estimator, self.average_rate = estimator, average_rate
        known = x_dim + condition_dim
        if estimator == "ml":
            self.posterior = ConditionalGaussian(known, y_dim, layer_dims)
        else:
            mlp = MLP(known + y_dim, layer_dims)
            self.critic = nn.Sequential(mlp, nn.Linear(mlp.output_dim, 1))
        self.prior = (
            ConditionalGaussian(condition_dim, y_dim, layer_dims) if condition_dim else None
        )
        self.moments = RowMoments(y_dim)
        self.register_buffer("average", torch.zeros(()))

    def loss(
        self, x: Tensor, y: Tensor, condition: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the loss () and the estimated mutual information (), without gradient, in nats.

        Args:
            x: (B, X).
            y: (B, Y).
            condition: (B, C).
            mask: (B,) false for rows that are not used.
        """
        given = x if condition is None else torch.cat([x, condition], -1)
        fit = x.new_zeros(())
        if self.prior is not None:
            assert condition is not None
            fit = -masked_mean(self.prior.log_prob(condition.detach(), y.detach()), mask)
        if self.estimator == "ml":
            likelihood = masked_mean(self.posterior.log_prob(given, y.detach()), mask)
            with torch.no_grad():
                value = likelihood - masked_mean(self._log_prior(y, condition), mask)
            return fit - likelihood, value
        joint = self.scores(given, y)
        product = self.scores(given, self.independent(y, condition))
        loss, value = self._bound(joint, product, mask)
        return fit + loss, value.detach()

    def _bound(self, joint: Tensor, product: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return loss and estimate for critic values (B,) of joint samples and of independent (product) samples."""
        mean = masked_mean(joint, mask)
        if self.estimator == "jsd":
            bound = masked_mean(-softplus(-joint), mask) - masked_mean(softplus(product), mask)
            return -bound - math.log(4.0), mean
        exponential = masked_mean(product.exp(), mask)
        if self.estimator == "kld":
            bound = mean - exponential + 1.0
            return -bound, bound
        if torch.is_grad_enabled():
            now = exponential.detach()
            first = self.average == 0
            self.average.copy_(torch.where(first, now, self.average.lerp(now, self.average_rate)))
        average = torch.where(self.average == 0, exponential.detach(), self.average)
        return exponential / average - mean, mean - exponential.log()

    def follow(self, y: Tensor) -> None:
        """Include y (B, Y) in the moments of the marginal Gaussian of ``ml``."""
        if self.estimator == "ml" and self.prior is None:
            self.moments.add(y)

    def scores(self, given: Tensor, y: Tensor) -> Tensor:
        """Return the critic's values (B,) of pairs."""
        values: Tensor = self.critic(torch.cat([given, y], -1)).squeeze(-1)
        return values.clamp(max=HIGHEST)

    def independent(self, y: Tensor, condition: Tensor | None) -> Tensor:
        """Return samples of y that are independent of x given the condition."""
        if self.prior is None:
            return y.roll(1, 0)
        assert condition is not None
        with torch.no_grad():
            mean, var = self.prior(condition)
            sample: Tensor = mean + var.sqrt() * torch.randn_like(mean)
            return sample

    def _log_prior(self, y: Tensor, condition: Tensor | None) -> Tensor:
        if self.prior is not None:
            assert condition is not None
            prior: ConditionalGaussian = self.prior
            return prior.log_prob(condition, y)
        return gaussian_log_prob(y, self.moments.mean, self.moments.std.square())


class MutualInformationConfig(SharingAuxiliaryConfig):
    """Options of an auxiliary of type ``mutual_information``."""

    model_config = {**Section.model_config}

    estimator: Estimator = Field(
        "jsd",
        description="estimate of the mutual information that is maximized: dv (Donsker-Varadhan), kld (f-divergence "
        "form of KL), jsd (Jensen-Shannon) or ml (likelihood of a Gaussian)",
    )
    given_observation: bool = Field(
        False,
        description="maximize only the information that the action adds to the observation",
    )
    steps: int = Field(1, ge=1, description="K: number of steps between the two observations")
    layer_dims: tuple[PositiveInt, ...] = Field(
        (256, 256), description="widths of the hidden layers of all networks"
    )
    average_rate: float = Field(
        0.01,
        gt=0,
        le=1,
        description="rate of the moving average that the estimator 'dv' uses in its gradient",
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
        """K: the loss is computed from this number of consecutive transitions."""
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
        """Update the moments of the later features, or share the moving average, as the estimator needs."""
        config = cast(MutualInformationConfig, self.config)
        if config.estimator == "ml" and not config.given_observation:
            after = {k: x[:, -1] for k, x in window_of(batch, config.steps)["obs"].items()}
            self.estimator.follow(self.features(after, batch.get("goal_obs")).float())
        elif config.estimator == "dv":
            self.followed = [module_of(self.estimator.average)]
