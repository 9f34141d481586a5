"""Forecast of a training's remaining time, from its first steps."""

from __future__ import annotations

import time

from imitate.train.console import duration, rate
from imitate.train.setup import Setup

FEWEST_STEPS = 3
LEAST_S = 2.0
WORTH_TELLING_S = 60.0
LONG_S = 1200.0
SLOW_STEP_S = 3.0
ADVICE = (
    "images are slow on a CPU with a large encoder: `imitate config init FILE` writes a "
    "configuration with a small one (ShallowConv, crops), as in robosuite/lift/bc_image; or "
    "train on a GPU"
)


class Forecast:
    """Forecast of the training's remaining time, printed once.

    Args:
        total: number of steps of the whole training.
        unit: name of a step, in the plural.
        images_on_cpu: true if the training learns from images without a GPU.
    """

    def __init__(self, total: int, unit: str, *, images_on_cpu: bool = False) -> None:
        self._total, self._unit, self._images_on_cpu = total, unit, images_on_cpu
        self._first: tuple[int, float] | None = None
        self._said = False

    def line(self, step: int) -> str | None:
        """Return the forecast's line once, as soon as it is known and useful; otherwise None.

        The first step is left out of the measurement, because libraries choose their kernels in it.

        Args:
            step: number of steps so far.
        """
        if self._said:
            return None
        now = time.perf_counter()
        if self._first is None:
            self._first = step, now
            return None
        done, passed = step - self._first[0], now - self._first[1]
        if done < FEWEST_STEPS or passed < LEAST_S:
            return None
        self._said = True
        left = (self._total - step) * passed / done
        if left < WORTH_TELLING_S:
            return None
        words = (
            f"about {duration(left)} for this training: {self._total - step} {self._unit} at "
            f"{rate(done / passed)} per s, without rollouts and validation"
        )
        is_slow = left > LONG_S or passed / done > SLOW_STEP_S
        return f"{words}; {ADVICE}" if self._images_on_cpu and is_slow else words


def images_on_cpu(setup: Setup) -> bool:
    """Return true if a training learns from images without a GPU."""
    kinds = setup.config.observation.modalities_of_all().values()
    return setup.device.type == "cpu" and any(kind in ("rgb", "depth") for kind in kinds)
