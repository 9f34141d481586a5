"""Random numbers of predictions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.bundle.spec import Noise

_TINY = np.finfo(np.float32).tiny


class NoiseSource:
    """Random numbers of predictions.

    Args:
        noise: counts.
        seed: of the generator; None: another one each time.
    """

    def __init__(self, noise: Noise, seed: int | None = None) -> None:
        self._counts, self._generator = noise, np.random.default_rng(seed)

    def draw(self) -> dict[str, NDArray[np.float32]]:
        """Return the numbers of the next prediction, of those kinds that it uses."""
        draw, counts, numbers = self._generator, self._counts, {}
        if counts.normal:
            numbers["noise/normal"] = draw.standard_normal(counts.normal, dtype=np.float32)
        if counts.exponential:
            waits = draw.standard_exponential(counts.exponential, dtype=np.float32)
            # A time of 0 would divide by zero.
            numbers["noise/exponential"] = np.maximum(waits, _TINY)
        return numbers
