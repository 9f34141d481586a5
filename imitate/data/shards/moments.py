"""Count, mean, spread and range of the rows of an array. They can be merged exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Moments:
    """Statistics of rows.

    Attributes:
        count: number of rows.
        mean: (D,) average.
        m2: (D,) sum of squared differences from the mean.
        min: (D,) smallest values.
        max: (D,) largest values.
    """

    count: int
    mean: Values
    m2: Values
    min: Values
    max: Values

    @classmethod
    def of(cls, rows: NDArray[Any]) -> Moments:
        """Compute the moments of rows.

        Args:
            rows: (n, D) with at least one row.
        """
        values = rows.astype(np.float64)
        mean = values.mean(axis=0)
        return cls(
            len(values),
            mean,
            ((values - mean) ** 2).sum(axis=0),
            values.min(axis=0),
            values.max(axis=0),
        )

    @classmethod
    def merged(cls, parts: Sequence[Moments]) -> Moments:
        """Merge moments to those of all rows together (Chan, Golub, LeVeque 1983).

        Args:
            parts: moments of the parts, at least one.
        """
        counts = np.array([part.count for part in parts], dtype=np.float64)[:, None]
        means = np.stack([part.mean for part in parts])
        total = counts.sum()
        mean = (counts * means).sum(axis=0) / total
        between = (counts * (means - mean) ** 2).sum(axis=0)
        return cls(
            int(total),
            mean,
            np.sum([part.m2 for part in parts], axis=0) + between,
            np.min([part.min for part in parts], axis=0),
            np.max([part.max for part in parts], axis=0),
        )
