"""Convolutions with pixel coordinates. (Liu et al., NeurIPS 2018, arXiv:1807.03247.)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class CoordConv2d(nn.Conv2d):
    """Convolution with two more input channels, the coordinates y and x in [0, 1)."""

    def __init__(self, in_channels: int, out_channels: int, **kwargs: Any) -> None:
        super().__init__(in_channels + 2, out_channels, **kwargs)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve images ``(B, C, H, W)`` and their coordinates."""
        return super().forward(with_coordinates(x))


def with_coordinates(x: Tensor) -> Tensor:
    """Add two channels to ``(B, C, H, W)``: row / H and column / W."""
    batch, _, height, width = x.shape
    rows = torch.arange(height, device=x.device, dtype=x.dtype) / height
    columns = torch.arange(width, device=x.device, dtype=x.dtype) / width
    grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"))
    return torch.cat([x, grid.expand(batch, -1, -1, -1)], dim=1)
