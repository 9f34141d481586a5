"""Random draws, in the order and with the results of torch's, at a fraction of their overhead."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_POISSON = torch.tensor([1.0 / math.factorial(k) for k in range(10)], dtype=torch.float64)
_POISSON = (_POISSON.cumsum(0) / math.e).float()
"""Poisson(1): probabilities of at most 0, 1, ... 9. Not in float64, which MPS lacks."""


def draw_class(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One class of each categorical distribution.

    Same draws as ``torch.multinomial`` of the probabilities, without its checks, which would wait for a GPU.

    Args:
        logits: (*B, C), unnormalized.
        generator: source of randomness; the default generator otherwise.

    Returns:
        (*B) class indices.
    """
    weights = logits.detach().softmax(-1)
    # Each class is the first of exponential clocks to ring with its probability.
    waits = torch.empty_like(weights).exponential_(generator=generator)
    return (weights / waits).argmax(-1)


def draw_normal(mean: Tensor, std: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One normal number for each element, without gradient; the draws of ``torch.normal``."""
    mean = mean.detach()
    return torch.empty_like(mean).normal_(generator=generator).mul_(std.detach()).add_(mean)


def smoothed_actions(actions: Tensor, noise_std: float, noise_clip: float) -> Tensor:
    """Target-policy smoothing of TD3 (Fujimoto et al. 2018, arXiv:1802.09477): ``clip(a + clip(noise, -c, c), -1, 1)``.

    Args:
        actions: (B, A) in [-1, 1].
        noise_std: standard deviation of the normal noise.
        noise_clip: c, bound of the noise.

    Returns:
        (B, A) in [-1, 1].
    """
    noise = torch.randn_like(actions) * noise_std
    return (actions + noise.clamp(-noise_clip, noise_clip)).clamp(-1.0, 1.0)


def bootstrap_counts(index: Tensor, members: int) -> Tensor:
    """Counts of each sample in the bootstrap of each member of an ensemble: Poisson(1), always the same.

    Oza and Russell, "Online Bagging and Boosting" (AISTATS 2001), with a hash of the sample's number in place of a
    generator, so that a member never sees what it was not given.

    Args:
        index: (B,) int64 numbers of samples.
        members: M.

    Returns:
        (M, B) int64.
    """
    member = torch.arange(1, members + 1, device=index.device).unsqueeze(-1)
    # SplitMix64 (Steele, Lea, Flood 2014), in integers that wrap around; shifts fill with the sign, which does no harm.
    bits = index * -0x61C8864680B583EB + member * -0x4B47D0C5A1A6B4B3
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        bits = (bits ^ (bits >> shift)) * factor
    uniform = ((bits ^ (bits >> 31)) & 0xFFFFFF).to(torch.float32) / 2.0**24
    return torch.searchsorted(_POISSON.to(index.device), uniform, right=True)


def pick_class(values: Tensor, index: Tensor) -> Tensor:
    """Rows of ``(*B, M, A)`` with indices ``(*B)``: ``(*B, A)``."""
    rows = index[..., None, None].expand(*index.shape, 1, values.shape[-1])
    return values.gather(-2, rows).squeeze(-2)
