"""Sums of the rewards that follow steps in a ring."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from imitate.config.transitions import Returns, Transitions
from imitate.data.rewards import RewardTransform
from imitate.online.ring import StepRing
from imitate.online.steps import Array


def n_step_sums(
    ring: StepRing, rows: Array, wanted: Transitions, reward: RewardTransform
) -> tuple[Array, Array, Array]:
    """Rows of the last steps that are summed, sums of rewards, discounts of what follows: (B,) each."""
    offsets = np.arange(wanted.n_step)
    steps = ring.later(rows[:, None], offsets)
    # The row after an episode's end is no step, nor is the newest one.
    counts = np.cumprod(ring.live[steps], axis=1)
    number = counts.sum(1)
    last = steps[np.arange(len(rows)), number - 1]
    rewards = reward(ring.values[steps, ring.columns["rewards"].start])
    if wanted.infinite_horizon:
        terminals = ring.values[steps, ring.columns["terminals"].start]
        rewards = np.where(terminals > 0, rewards / (1.0 - wanted.discount), rewards)
    sums = (rewards * wanted.discount**offsets * counts).sum(1).astype(np.float32)
    terminal = ring.values[last, ring.columns["terminals"].start]
    return last, sums, (wanted.discount**number * (1.0 - terminal)).astype(np.float32)


def returns_to_go(
    ring: StepRing, rows: Array, wanted: Returns, reward: RewardTransform
) -> NDArray[np.float32]:
    """(B,) discounted rewards from these rows to the ends of their episodes; -inf where there is none yet."""
    total, factor = np.zeros(len(rows)), 1.0
    now, going = rows, np.arange(len(rows))
    after_end = wanted.discount / (1.0 - wanted.discount) if wanted.continue_truncated else 0.0
    while len(going):
        values = ring.values[now]
        raw = values[:, ring.columns["rewards"].start]
        rewards = reward(raw) if wanted.scaled else raw
        terminal = values[:, ring.columns["terminals"].start] > 0
        cut = (values[:, ring.columns["timeouts"].start] > 0) & ~terminal
        total[going] += factor * rewards * (1.0 + after_end * cut)
        following = ring.later(now, 1)
        over = terminal | cut
        unknown = ~over & ~ring.live[following]
        total[going[unknown]] = -np.inf
        kept = ~(over | unknown)
        now, going, factor = following[kept], going[kept], factor * wanted.discount
    return total.astype(np.float32)
