"""Weights of the steps and samples of a batch in a loss."""

from __future__ import annotations

import torch
from torch import Tensor

from imitate.algo.base.algo import Batch
from imitate.functional.losses import step_weights


def step_weight(batch: Batch) -> Tensor | None:
    """Return the weight of each action of a selected batch in the loss; 0 for padding, None for equal weights.

    Args:
        batch: has ``pad_mask``, true for real steps, and ``weight``, both (B, [T,] ...) or absent.
    """
    return step_weights(batch.get("pad_mask"), batch.get("weight"))


def sample_weight(batch: Batch) -> Tensor | None:
    """Return the weight (B,) of each sample of a selected batch: the mean weight of its real steps.

    None for equal weights.
    """
    weight, mask = batch.get("weight"), batch.get("pad_mask")
    if weight is None or weight.dim() == 1:
        return weight
    real = torch.ones_like(weight) if mask is None else mask.to(weight)
    steps = tuple(range(1, weight.dim()))
    mean: Tensor = (weight * real).sum(steps) / real.sum(steps).clamp(min=1.0)
    return mean
