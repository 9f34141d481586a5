"""Offset and scale of a normalization: ``normalized = (raw - offset) / scale``.

Computed in float64. A dimension that is constant in the data is shifted and never scaled:
its spread is noise, and dividing by it would blow up the first value that differs.
"""

from __future__ import annotations

import torch
from torch import Tensor

OBS_STD_FLOOR = 0.01
"""Observations with a smaller standard deviation are divided by this."""
CONSTANT_RANGE = 1e-4
"""A dimension whose range is smaller is constant."""
CONSTANT_STD = 1e-6
"""An action dimension whose standard deviation is smaller is constant."""
ACTION_LIMIT = 0.999999
"""Actions scaled by min_max stay inside +- this, off the ends where tanh is infinite."""


def mean_std_with_floor(
    mean: Tensor, std: Tensor, floor: float = OBS_STD_FLOOR
) -> tuple[Tensor, Tensor]:
    """Offset and scale to mean 0 and standard deviation 1, or less where std is under the floor."""
    return mean.double(), std.double().clamp(min=floor)


def mean_std_unless_constant(
    mean: Tensor, std: Tensor, constant: float = CONSTANT_STD
) -> tuple[Tensor, Tensor]:
    """Offset and scale to mean 0 and std 1; scale 1 where std is under ``constant``."""
    std = std.double()
    return mean.double(), torch.where(std < constant, 1.0, std)


def min_max(
    low: Tensor, high: Tensor, limit: float = 1.0, constant: float = CONSTANT_RANGE
) -> tuple[Tensor, Tensor]:
    """Offset and scale to [-limit, limit]; scale 1 where the range is under ``constant``."""
    low, high = low.double(), high.double()
    spread = high - low
    scale = torch.where(spread < constant, 1.0, spread / (2.0 * limit))
    return (low + high) / 2.0, scale
