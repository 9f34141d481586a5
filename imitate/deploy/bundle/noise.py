"""Random numbers of predictions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.bundle.spec import Noise


class NoiseSource:
    """Random numbers of predictions.

    Args:
        noise: counts.
        seed: of the generator; None: another one each time.
    """

    def __init__(self, noise: Noise, seed: int | None = None) -> None:
        self._counts, self._generator = noise, np.random.default_rng(seed)

    def draw(self) -> dict[str, NDArray[np.float32]]:
        """Return the numbers of the next prediction."""
        draw, counts = self._generator, self._counts
        waits = draw.standard_exponential(counts.exponential, dtype=np.float32)
        return {
            "noise/normal": draw.standard_normal(counts.normal, dtype=np.float32),
            # A time of 0 would divide by zero.
            "noise/exponential": np.maximum(waits, np.finfo(np.float32).tiny),
        }
