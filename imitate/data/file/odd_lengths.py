"""Demos far shorter or longer than the others, which may have ended too early or too late."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_SHORT, _LONG = 0.25, 3.0  # factor of the median length
_OUTLYING = 6.0  # in robust standard deviations of the logarithm of the length
_FEWEST = 5


def odd_lengths(lengths: Sequence[int]) -> dict[str, list[int]]:
    """Return the indices of 'short' and 'long' demos by their lengths, each at least 1.

    Empty for fewer than 5 demos.
    """
    found: dict[str, list[int]] = {"short": [], "long": []}
    if len(lengths) < _FEWEST:
        return found
    logs = np.log(lengths)
    median = float(np.median(logs))
    spread = 1.4826 * float(np.median(np.abs(logs - median)))
    for number, value in enumerate(logs):
        if abs(value - median) > _OUTLYING * spread:
            if value < median + np.log(_SHORT):
                found["short"].append(number)
            elif value > median + np.log(_LONG):
                found["long"].append(number)
    return found
