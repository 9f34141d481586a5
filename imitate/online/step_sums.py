"""Sums of the rewards that follow steps in a ring."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from imitate.config.data_needs import Returns, Transitions
from imitate.data.batches.rewards import RewardTransform
from imitate.online.ring import StepRing
from imitate.online.steps import Array


def n_step_sums(
    ring: StepRing, rows: Array, wanted: Transitions, reward: RewardTransform
) -> tuple[Array, Array, Array]:
    """Return (B,) rows of the last summed steps, sums of rewards, and discounts of the bootstrap values."""
    offsets = np.arange(wanted.n_step)
    steps = ring.later(rows[:, None], offsets)
    # The row after an episode's end contains no step, nor does the newest one.
    counts = np.cumprod(ring.live[steps], axis=1)
    number = counts.sum(1)
    last = steps[np.arange(len(rows)), number - 1]
    rewards = reward(ring.rewards[steps])
    if wanted.infinite_horizon:
        rewards = np.where(ring.terminals[steps], rewards / (1.0 - wanted.discount), rewards)
    sums = (rewards * wanted.discount**offsets * counts).sum(1).astype(np.float32)
    return last, sums, (wanted.discount**number * ~ring.terminals[last]).astype(np.float32)


def returns_to_go(
    ring: StepRing, rows: Array, wanted: Returns, reward: RewardTransform
) -> NDArray[np.float32]:
    """Return (B,) discounted rewards from these rows to their episodes' ends; -inf if the end is not known yet."""
    total, factor = np.zeros(len(rows)), 1.0
    now, going = rows, np.arange(len(rows))
    after_end = wanted.discount / (1.0 - wanted.discount) if wanted.continue_truncated else 0.0
    while len(going):
        rewards = reward(ring.rewards[now]) if wanted.scaled else ring.rewards[now]
        terminal = ring.terminals[now]
        cut = ring.timeouts[now] & ~terminal
        total[going] += factor * rewards * (1.0 + after_end * cut)
        following = ring.later(now, 1)
        over = terminal | cut
        unknown = ~over & ~ring.live[following]
        total[going[unknown]] = -np.inf
        kept = ~(over | unknown)
        now, going, factor = following[kept], going[kept], factor * wanted.discount
    return total.astype(np.float32)
