"""Offset and scale of a normalization: ``normalized = (raw - offset) / scale``.

Computed in float64. A dimension that is constant in the data is never divided by its spread, which is only rounding
noise: that would make the first different value huge. The limit for rounding noise is relative to the magnitude of the
values, so that it does not depend on their unit.
"""

import torch
from torch import Tensor

OBS_STD_FLOOR = 0.01
"""Floor: smallest standard deviation by which observations are divided, unless all numbers of a key vary less."""
FLOOR_RATIO = 0.1
"""This fraction of a key's largest standard deviation replaces the floor, if it is below the floor."""
ROUNDING = 1e-6
"""A dimension counts as constant if its spread is at most this fraction of the key's largest magnitude."""
QUANTILE_REACH = 10.0
"""Largest magnitude of values after scaling by quantiles."""
ACTION_LIMIT = 0.999999
"""Largest magnitude of actions scaled by min_max; below 1, because the inverse of tanh is infinite at 1."""


def mean_std_with_floor(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Return offset and scale to mean 0 and standard deviation 1, or less if the data's deviation is below the floor.

    The scale of constant dimensions is the floor.
    """
    mean, std = mean.double(), std.double()
    largest = std.max() if std.numel() else torch.zeros((), dtype=torch.float64)
    floor = torch.clamp(FLOOR_RATIO * largest, max=OBS_STD_FLOOR)
    scale = torch.where(
        std <= _rounding(mean.abs() + std), OBS_STD_FLOOR, torch.maximum(std, floor)
    )
    return mean, scale


def mean_std_unless_constant(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Return offset and scale to mean 0 and standard deviation 1; the scale of constant dimensions is 1."""
    mean, std = mean.double(), std.double()
    return mean, torch.where(std <= _rounding(mean.abs() + std), 1.0, std)


def min_max(low: Tensor, high: Tensor, limit: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return offset and scale to [-limit, limit]; the scale of constant dimensions is 1."""
    low, high = low.double(), high.double()
    scale = torch.where(is_constant(low, high), 1.0, (high - low) / (2.0 * limit))
    return (low + high) / 2.0, scale


def quantiles(
    lower: Tensor, upper: Tensor, low: Tensor, high: Tensor, reach: float = QUANTILE_REACH
) -> tuple[Tensor, Tensor]:
    """Return offset and scale that map two quantiles to -1 and 1, unless a value would then exceed ``reach``.

    A number that changes only in rare events, such as a gripper that closes once, has quantiles that hardly differ;
    scaled by them, the rare values would become targets in the thousands.

    Args:
        lower: lower quantile of each number.
        upper: upper quantile of each number.
        low: smallest value of each number.
        high: largest value of each number.
        reach: largest magnitude of a scaled value.
    """
    lower, upper, low, high = (x.double() for x in (lower, upper, low, high))
    offset = (lower + upper) / 2.0
    farthest = torch.maximum(high - offset, offset - low)
    scale = torch.maximum((upper - lower) / 2.0, farthest / reach)
    return offset, torch.where(is_constant(low, high), 1.0, scale)


def is_constant(low: Tensor, high: Tensor) -> Tensor:
    """Return for each number of a key whether its range, from ``low`` to ``high``, is only rounding noise."""
    low, high = low.double(), high.double()
    return high - low <= _rounding(torch.maximum(low.abs(), high.abs()))


def _rounding(magnitudes: Tensor) -> Tensor:
    return ROUNDING * (magnitudes.max() if magnitudes.numel() else magnitudes.sum())
