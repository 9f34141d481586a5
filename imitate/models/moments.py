"""Running means and standard deviations: of a network's inputs or targets, and of the returns of values (PopArt).

van Hasselt, Guez, Hessel, Mnih, Silver, "Learning values across many orders of magnitude", NeurIPS 2016
(arXiv:1602.07714). A value is ``std * (w x + b) + mean``. When the statistics of the returns change, w and b change
with them, so that all values stay the same:

    w <- w std / std',   b <- (std b + mean - mean') / std'

Departure: the standard deviation is at least a tenth of the returns' root mean square. Otherwise, a policy that reaches
its best return in every episode would make the standard deviation so small that the next failure has an error of
thousands.
"""

import torch
from torch import Tensor, nn

from imitate.models.mlp import FullPrecisionLinear


class RowMoments(nn.Module):
    """Running mean and variance of rows (B, D), merged batch by batch (Chan et al. 1979)."""

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("squares", torch.zeros(size))

    @torch.no_grad()
    def add(self, rows: Tensor) -> None:
        """Include rows (B, D) in the moments."""
        mean, count = rows.mean(0), len(rows)
        total, difference = self.count + count, mean - self.mean
        self.squares += (rows - mean).square().sum(0)
        self.squares += difference.square() * self.count * count / total
        self.mean += difference * count / total
        self.count.copy_(total)

    @property
    def std(self) -> Tensor:
        """Return the standard deviation (D,); 1 for numbers without rows so far or without variation."""
        std = (self.squares / self.count.clamp(min=1.0)).sqrt()
        return std.masked_fill_(std <= 1e-6, 1.0)


MIN_STD = 1e-4
"""Smallest standard deviation, as in the paper."""
MIN_SHARE = 0.1
"""Smallest standard deviation, as a fraction of the root mean square of the returns."""


class PopArt(FullPrecisionLinear):
    """Linear map to V normalized values, which are returned in the units of the returns.

    Args:
        input_dim: number of features.
        num_values: V.
        rate: fraction of the statistics that each new set of returns replaces; the first sets have equal weights.

    Attributes:
        mean: (V,) mean of the returns.
        std: (V,) standard deviation of the returns.
        count: () number of times that the statistics have changed.
    """

    mean: Tensor
    std: Tensor
    count: Tensor

    def __init__(self, input_dim: int, num_values: int, rate: float) -> None:
        super().__init__(input_dim, num_values)
        self.rate = rate
        self.register_buffer("mean", torch.zeros(num_values))
        self.register_buffer("std", torch.ones(num_values))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(*B, in_features)`` to values ``(*B, V)``."""
        return self.std * super().forward(x) + self.mean

    @torch.no_grad()
    def observe(self, mean: Tensor, square: Tensor) -> None:
        """Move the statistics towards the mean (V,) and the mean square (V,) of new returns; values stay the same."""
        self.count += 1.0
        rate = max(self.rate, 1.0 / float(self.count))
        old_mean, old_std = self.mean.double(), self.std.double()
        new_mean = old_mean.lerp(mean.double(), rate)
        squares = (old_std.square() + old_mean.square()).lerp(square.double(), rate)
        least = (MIN_SHARE**2 * squares).clamp(min=MIN_STD**2)
        new_std = (squares - new_mean.square()).maximum(least).sqrt()
        self.weight.copy_(self.weight * (old_std / new_std).unsqueeze(-1))
        self.bias.copy_((old_std * self.bias + old_mean - new_mean) / new_std)
        self.mean.copy_(new_mean)
        self.std.copy_(new_std)
