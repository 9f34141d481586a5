"""Values of keys that are null or ``auto``, from lengths and statistics of the demonstrations; needs no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

HORIZON_PER_DEMO = 2.0
"""A policy gets so many times the steps of the demonstrations: it hesitates, misses and tries again."""
LONG_DEMO = 0.95
"""Quantile of the lengths that stands for a long demonstration; the few above it may be accidents."""
PASSES = 20
"""Times that a training of null epochs sees each sample, about."""
LEAST_UPDATES = 1000
"""Updates of a training of null epochs, however few the samples."""
SMALL_ACTIONS = 0.5
"""Actions that all stay within +- this are small beside the noise and the output range of the networks."""


def rollout_horizon(lengths: Sequence[int]) -> int:
    """Steps after which an episode of the policy ends, as in ``experiment.rollout.horizon``.

    Args:
        lengths: steps of each demonstration; at least one.

    Returns:
        Twice the length that 95 % of the demonstrations stay under, at least the longest; a multiple of ten.
    """
    long = float(np.quantile(np.asarray(lengths, dtype=np.float64), LONG_DEMO))
    return 10 * math.ceil(max(HORIZON_PER_DEMO * long, max(lengths)) / 10)


def num_epochs(samples: int, batch_size: int, epoch_steps: int) -> int:
    """Epochs of a training, as in ``train.num_epochs``: 20 passes over the samples, at least 1,000 updates.

    Args:
        samples: windows to train on, one per step of the demonstrations.
        batch_size: samples in an update.
        epoch_steps: updates in an epoch.
    """
    updates = max(LEAST_UPDATES, PASSES * samples / batch_size)
    return math.ceil(updates / epoch_steps)


def action_normalization(low: ArrayLike, high: ArrayLike) -> Literal["min_max"] | None:
    """Normalization of an action key, as in ``train.action_config.<key>.normalization``.

    Args:
        low: (A,) lowest action of the demonstrations per dimension.
        high: (A,) highest.

    Returns:
        ``min_max`` where actions leave [-1, 1], or are all small; else None: they are in the networks' range already.
    """
    largest = max(float(np.abs(low).max()), float(np.abs(high).max()))
    return None if SMALL_ACTIONS <= largest <= 1.0 else "min_max"
