"""Random numbers of predictions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.bundle.spec import Noise

_TINY = np.finfo(np.float32).tiny


class NoiseSource:
    """Random numbers of predictions.

    Args:
        noise: counts of the numbers by kind.
        seed: seed of the generator, or None for a different one each time.
    """

    def __init__(self, noise: Noise, seed: int | None = None) -> None:
        self._counts, self._generator = noise, np.random.default_rng(seed)

    def draw(self) -> dict[str, NDArray[np.float32]]:
        """Return the random numbers of the next prediction, for the kinds that it uses."""
        draw, counts, numbers = self._generator, self._counts, {}
        if counts.normal:
            numbers["noise/normal"] = draw.standard_normal(counts.normal, dtype=np.float32)
        if counts.exponential:
            waits = draw.standard_exponential(counts.exponential, dtype=np.float32)
            # A time of 0 would cause a division by zero.
            numbers["noise/exponential"] = np.maximum(waits, _TINY)
        return numbers
