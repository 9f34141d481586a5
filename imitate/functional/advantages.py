"""Advantages of actions in rollouts, which may contain several episodes.

Rollouts are (T, N): T steps of N environments. ``values`` are the values of the states before the steps and
``next_values`` of the states after them; at a timeout, of the state in which the episode was truncated.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float32]
Flags = NDArray[np.bool_]


def generalized_advantages(
    rewards: Numbers,
    values: Numbers,
    next_values: Numbers,
    terminals: Flags,
    timeouts: Flags,
    discount: float,
    trace: float,
) -> Numbers:
    """GAE: ``A[t] = d[t] + discount trace A[t+1]``, ``d[t] = r[t] + discount V(s[t+1]) - V(s[t])``.

    The sum ends at terminals and timeouts; after a timeout, the value of the final state is included. With ``trace`` 1
    the advantage is the discounted return minus the value, with 0 the one-step TD error. (Schulman et al. 2016,
    arXiv:1506.02438.)

    Args:
        rewards: (T, N).
        values: (T, N).
        next_values: (T, N).
        terminals: (T, N), true where the task ended.
        timeouts: (T, N), true where the episode was truncated by its time limit.
        discount: in [0, 1].
        trace: the paper's lambda, in [0, 1].

    Returns:
        (T, N) advantages. Advantages plus ``values`` are the regression targets of TD(lambda).
    """
    errors = rewards + discount * next_values * ~terminals - values
    factors = (discount * trace * ~(terminals | timeouts)).astype(np.float32)
    advantages = np.empty_like(errors)
    running = np.zeros_like(errors[0])
    for step in range(len(errors) - 1, -1, -1):
        running = errors[step] + factors[step] * running
        advantages[step] = running
    return advantages


def lambda_returns(
    rewards: Numbers,
    next_values: Numbers,
    terminals: Flags,
    timeouts: Flags,
    discount: float,
    trace: float,
) -> Numbers:
    """TD(lambda): ``G[t] = r[t] + discount ((1 - trace) V(s[t+1]) + trace G[t+1])``.

    At a timeout and at the end of the rollout, G[t+1] is the value of the final state; after a terminal it is 0.

    Args:
        rewards: (T, N).
        next_values: (T, N).
        terminals: (T, N), true where the task ended.
        timeouts: (T, N), true where the episode was truncated.
        discount: in [0, 1].
        trace: the paper's lambda, in [0, 1].
    """
    returns = np.empty_like(rewards)
    following = next_values[-1]
    for step in range(len(rewards) - 1, -1, -1):
        after = np.where(timeouts[step], next_values[step], following)
        mixed = (1.0 - trace) * next_values[step] + trace * after
        following = rewards[step] + discount * np.where(terminals[step], 0.0, mixed)
        returns[step] = following
    return returns
