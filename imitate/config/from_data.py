"""Values of keys that are null or ``auto``, from lengths and statistics of the demonstrations; needs no torch."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

HORIZON_PER_DEMO = 2.0
"""Evaluation horizon divided by the length of a long demonstration: a policy is slower, because it hesitates and
retries.
"""
LONG_DEMO = 0.95
"""Quantile of the lengths that represents a long demonstration; longer ones may be accidents."""
PASSES = 20
"""Approximate number of passes over the samples if the number of epochs is null."""
LEAST_UPDATES = 1000
"""Smallest number of updates if the number of epochs is null and there are few samples."""
SMALL_ACTIONS = 0.5
"""Actions whose absolute values are all below this are small compared with the networks' noise and output range."""


def rollout_horizon(lengths: Sequence[int]) -> int:
    """Compute the length at which an evaluation episode ends, for ``experiment.rollout.horizon``.

    Args:
        lengths: number of steps of each demonstration; at least one demonstration.

    Returns:
        Twice the 95 % quantile of the lengths, but at least the longest length; rounded to a multiple of ten.
    """
    long = float(np.quantile(np.asarray(lengths, dtype=np.float64), LONG_DEMO))
    return 10 * math.ceil(max(HORIZON_PER_DEMO * long, max(lengths)) / 10)


def num_epochs(samples: int, batch_size: int, epoch_steps: int) -> int:
    """Compute ``train.num_epochs``: 20 passes over the samples, but at least 1,000 updates.

    Args:
        samples: number of training windows, one per step of the demonstrations.
        batch_size: samples per update.
        epoch_steps: updates per epoch.
    """
    updates = max(LEAST_UPDATES, PASSES * samples / batch_size)
    return math.ceil(updates / epoch_steps)


UNBOUNDED_ACTIONS = (
    "actions leave [-1, 1]: imitate config init scales them "
    "(train.action_config.actions.normalization=min_max)"
)
"""Advice for data whose actions must be scaled by the configuration of a training."""


def action_normalization(low: ArrayLike, high: ArrayLike) -> Literal["min_max"] | None:
    """Choose ``train.action_config.<key>.normalization`` for an action key.

    Args:
        low: (A,) lowest action of the demonstrations per dimension.
        high: (A,) highest action of the demonstrations per dimension.

    Returns:
        ``min_max`` if some actions are outside of [-1, 1] or all actions are small; else None, for actions as stored.
    """
    largest = max(float(np.abs(low).max()), float(np.abs(high).max()))
    return None if SMALL_ACTIONS <= largest <= 1.0 else "min_max"
