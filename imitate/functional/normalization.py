"""Offset and scale of a normalization: ``normalized = (raw - offset) / scale``.

Computed in float64. A dimension that is constant in the data is shifted and never scaled: its spread is rounding, and
dividing by it would blow up the first value that differs. What counts as rounding depends on the magnitude of the
values, not on their unit: actions of 40 micrometres are as good as actions of a metre.
"""

from __future__ import annotations

import torch
from torch import Tensor

OBS_STD_FLOOR = 0.01
"""Observations with a smaller standard deviation are divided by this, unless all of a key are that small."""
FLOOR_RATIO = 0.1
"""Part of the largest standard deviation of a key that replaces the floor where it is smaller."""
ROUNDING = 1e-6
"""A spread of at most this part of the largest value of a key is rounding: the dimension is constant."""
QUANTILE_REACH = 10.0
"""Greatest magnitude of the data's values when they are scaled by quantiles."""
ACTION_LIMIT = 0.999999
"""Actions scaled by min_max stay inside +- this, off the ends where tanh is infinite."""


def mean_std_with_floor(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Offset and scale to mean 0 and standard deviation 1, or less where std is under the floor."""
    mean, std = mean.double(), std.double()
    largest = std.max() if std.numel() else torch.zeros((), dtype=torch.float64)
    floor = torch.clamp(FLOOR_RATIO * largest, max=OBS_STD_FLOOR)
    scale = torch.where(
        std <= _rounding(mean.abs() + std), OBS_STD_FLOOR, torch.maximum(std, floor)
    )
    return mean, scale


def mean_std_unless_constant(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Offset and scale to mean 0 and standard deviation 1; scale 1 where the dimension is constant."""
    mean, std = mean.double(), std.double()
    return mean, torch.where(std <= _rounding(mean.abs() + std), 1.0, std)


def min_max(low: Tensor, high: Tensor, limit: float = 1.0) -> tuple[Tensor, Tensor]:
    """Offset and scale to [-limit, limit]; scale 1 where the dimension is constant."""
    low, high = low.double(), high.double()
    scale = torch.where(is_constant(low, high), 1.0, (high - low) / (2.0 * limit))
    return (low + high) / 2.0, scale


def quantiles(
    lower: Tensor, upper: Tensor, low: Tensor, high: Tensor, reach: float = QUANTILE_REACH
) -> tuple[Tensor, Tensor]:
    """Offset and scale that take two quantiles to -1 and 1, and no value beyond ``reach``.

    A number that changes in rare events alone, such as a gripper that closes once, has quantiles that hardly differ;
    scaled by them, the events would become targets in the thousands.

    Args:
        lower: the lower quantile of each number.
        upper: the upper quantile.
        low: the smallest value.
        high: the largest value.
        reach: greatest magnitude of a scaled value.
    """
    lower, upper, low, high = (x.double() for x in (lower, upper, low, high))
    offset = (lower + upper) / 2.0
    farthest = torch.maximum(high - offset, offset - low)
    scale = torch.maximum((upper - lower) / 2.0, farthest / reach)
    return offset, torch.where(is_constant(low, high), 1.0, scale)


def is_constant(low: Tensor, high: Tensor) -> Tensor:
    """Tell for each number of a key whether its range, from ``low`` to ``high``, is mere rounding."""
    low, high = low.double(), high.double()
    return high - low <= _rounding(torch.maximum(low.abs(), high.abs()))


def _rounding(magnitudes: Tensor) -> Tensor:
    return ROUNDING * (magnitudes.max() if magnitudes.numel() else magnitudes.sum())
