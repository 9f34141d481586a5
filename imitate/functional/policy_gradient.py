"""Advantages and losses of policy gradients from rollouts: pure, unreduced over the batch.

Rollouts may contain several episodes and are (T, N): T steps of N environments. ``values`` are the values of the states
before the steps, and ``next_values`` the values of the states after them. At a timeout, the state after the step is the
one in which the episode was truncated, not the first state of the next episode.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def clipped_surrogate(log_ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Clipped surrogate loss: ``-min(rho A, clip(rho, 1 - clip, 1 + clip) A)``.

    Schulman et al. 2017, arXiv:1707.06347.

    Args:
        log_ratio: (B,) log rho: the action's current log-density minus its log-density when it was taken.
        advantages: (B,) A.
        clip: largest distance of the ratio from 1.

    Returns:
        (B,).
    """
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def clipped_value_error(
    values: Tensor, returns: Tensor, old_values: Tensor, clip: float | None
) -> Tensor:
    """Squared error of values: the larger of the errors of the value and of the clipped value.

    Args:
        values: (B,).
        returns: (B,) targets.
        old_values: (B,) values before the updates on this rollout.
        clip: largest distance of the clipped value from the old value; None: no clipping.

    Returns:
        (B,).
    """
    errors = (values - returns).square()
    if clip is None:
        return errors
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(errors, (clipped - returns).square())


def divergence_of_ratios(log_ratio: Tensor) -> Tensor:
    """Estimate KL(old || new) from samples of the old policy: ``rho - 1 - log rho``, never negative.

    Schulman, "Approximating KL Divergence", 2020 (http://joschu.net/blog/kl-approx.html).

    Args:
        log_ratio: (B,) log rho.

    Returns:
        (B,).
    """
    return log_ratio.exp() - 1.0 - log_ratio


def clipped_share(log_ratio: Tensor, clip: float) -> Tensor:
    """Fraction () of the ratios (B,) that differ from 1 by more than ``clip``."""
    return ((log_ratio.exp() - 1.0).abs() > clip).float().mean()


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """Return 1 - Var(returns - values) / Var(returns), in (-inf, 1]; 1 if the values are the returns up to a constant.

    Args:
        values: (B, ...) predicted values.
        returns: (B, ...) actual returns. If all returns are equal, the result is 0.
    """
    spread = returns.var(correction=0)
    left = (returns - values).var(correction=0) / spread.clamp(min=torch.finfo(spread.dtype).tiny)
    return torch.where(spread > 0, 1.0 - left, 0.0)


Numbers = NDArray[np.float32]
Flags = NDArray[np.bool_]


def generalized_advantages(
    rewards: Numbers,
    values: Numbers,
    next_values: Numbers,
    terminals: Flags,
    timeouts: Flags,
    discount: float,
    trace: float | Numbers,
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
        trace: the paper's lambda in [0, 1], one number or one per step (T, N). It is 1 within a chunk of actions that
            were decided together: there the value of the next state cancels out.

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


def vtrace(
    rewards: Numbers,
    values: Numbers,
    next_values: Numbers,
    ratios: Numbers,
    terminals: Flags,
    timeouts: Flags,
    discount: float,
    trace: float,
) -> tuple[Numbers, Numbers]:
    """V-trace: targets v of the values, and advantages, from steps of an older policy.

    With c[t] = min(1, ratio) and d[t] = c[t] (r[t] + discount V(s[t+1]) - V(s[t])):

        v[t] = V(s[t]) + d[t] + discount trace c[t] (v[t+1] - V(s[t+1]))
        A[t] = c[t] (r[t] + discount (V(s[t+1]) + trace (v[t+1] - V(s[t+1]))) - V(s[t]))

    Espeholt et al., "IMPALA", ICML 2018, arXiv:1802.01561, with both thresholds 1; ``trace`` is 1 in its experiments.
    If all ratios are 1, the advantages equal :func:`generalized_advantages`, and v is advantages plus values.

    Args:
        rewards: (T, N).
        values: (T, N).
        next_values: (T, N).
        ratios: (T, N) probability of the action under the current policy, divided by its probability when it was taken.
        terminals: (T, N), true where the task ended.
        timeouts: (T, N), true where the episode was truncated by its time limit.
        discount: in [0, 1].
        trace: lambda, in [0, 1].

    Returns:
        (T, N) targets, (T, N) advantages.
    """
    clipped = np.minimum(ratios, np.float32(1.0))
    goes_on = ~terminals
    errors = clipped * (rewards + discount * next_values * goes_on - values)
    factors = (discount * trace * clipped * ~(terminals | timeouts)).astype(np.float32)
    excess, after = np.empty_like(errors), next_values.copy()
    running = np.zeros_like(errors[0])
    for step in range(len(errors) - 1, -1, -1):
        after[step] += trace * running * ~timeouts[step]
        running = errors[step] + factors[step] * running
        excess[step] = running
    return values + excess, clipped * (rewards + discount * after * goes_on - values)


@torch.no_grad()
def surrogate_figures(
    log_ratio: Tensor, clip: float, values: Tensor, returns: Tensor
) -> dict[str, Tensor]:
    """Return statistics of a minibatch that algorithms with a clipped surrogate log, each a scalar tensor.

    Args:
        log_ratio: (B,) log pi(a) - log pi_old(a).
        clip: limit of the ratio's distance from 1.
        values: (B,) or (B, S) values of the rollout.
        returns: like ``values``.
    """
    return {
        "KL": divergence_of_ratios(log_ratio).mean(),
        "Clip_Fraction": clipped_share(log_ratio, clip),
        "Explained_Variance": explained_variance(values, returns),
    }
