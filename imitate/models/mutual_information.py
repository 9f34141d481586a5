"""Estimators of the mutual information of two vectors, by a network that is trained to maximize a bound.

For the joint distribution P of x and y, the product Q of their distributions, and a critic T(x, y):

    dv     E_P T - log E_Q e^T             Donsker-Varadhan; Belghazi et al., "MINE", ICML 2018 (arXiv:1801.04062)
    kld    E_P T - E_Q e^T + 1             Nguyen, Wainwright, Jordan 2010, a bound by the dual of the KL divergence
    jsd    -E_P sp(-T) - E_Q sp(T) + log 4, sp = softplus; Hjelm et al., "Deep InfoMax", ICLR 2019 (arXiv:1808.06670)
    ml     E_P log q(y | x) - log p(y)     Barber, Agakov 2003, Gaussians q (a network, diagonal) and p (of the data)

The bound of ``jsd`` is not one of the mutual information, which is then read as E_P T. The gradient of ``dv`` has a
moving average of E_Q e^T in its denominator, which makes it unbiased in the long run (MINE, section 3.2); T is at most
:data:`HIGHEST`. Samples of Q pair each x with the y of the next row, so rows have to be independent of each other.

With a condition c, it is the information that x and y share beyond what c tells of y: T sees c, and Q pairs x and c
with a sample of a network's Gaussian P(y | c); ``dv`` has no such form here. ``ml`` is then log q(y | x, c) -
log p(y | c).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from imitate.functional.losses import gaussian_log_prob, masked_mean
from imitate.models.mlp import MLP, MultiHeadMLP
from imitate.models.moments import RowMoments

Estimator = Literal["dv", "kld", "jsd", "ml"]
HIGHEST = 20.0
"""Largest value of the critic T."""
LOG_VAR = (-10.0, 5.0)
"""Limits of log variances."""


class ConditionalGaussian(nn.Module):
    """Network that gives a diagonal Gaussian of y (B, D) for inputs (B, C)."""

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
        x_dim: X.
        y_dim: Y.
        condition_dim: C; 0: no condition.
        estimator: kind of bound.
        layer_dims: hidden layers of the networks.
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
        """Return loss and estimate for values (B,) of the critic at samples of P and of Q."""
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

    def pointwise(self, x: Tensor, y: Tensor, condition: Tensor | None = None) -> Tensor:
        """Return the pointwise mutual information (B,), whose mean over P is the mutual information."""
        given = x if condition is None else torch.cat([x, condition], -1)
        if self.estimator == "ml":
            return self.posterior.log_prob(given, y) - self._log_prior(y, condition)
        values = self.scores(given, y)
        return values - self.average.log() if self.estimator == "dv" else values

    def follow(self, y: Tensor) -> None:
        """Include y (B, Y) in the moments of the marginal Gaussian of ``ml``."""
        if self.estimator == "ml" and self.prior is None:
            self.moments.add(y)

    def scores(self, given: Tensor, y: Tensor) -> Tensor:
        """Return the critic's values (B,) of pairs."""
        values: Tensor = self.critic(torch.cat([given, y], -1)).squeeze(-1)
        return values.clamp(max=HIGHEST)

    def independent(self, y: Tensor, condition: Tensor | None) -> Tensor:
        """Return samples of y that do not depend on x, given the condition."""
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
