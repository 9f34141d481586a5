"""Running mean and standard deviation of a network's inputs or targets."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
        """Return the standard deviation (D,); 1 where nothing is known or nothing varies."""
        std = (self.squares / self.count.clamp(min=1.0)).sqrt()
        return std.masked_fill_(std <= 1e-6, 1.0)
