"""Losses of policy gradients from rollouts. They are pure functions, unreduced over the batch."""

from __future__ import annotations

import torch
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
    """Squared error of values: the larger one of the value's and the clipped value's.

    Args:
        values: (B,).
        returns: (B,) targets.
        old_values: (B,) values before the updates on this rollout.
        clip: largest distance of the clipped value from the old one; None: no clipping.

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
