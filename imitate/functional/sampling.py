"""Random draws, in the order and with the results of torch's, at a fraction of their overhead."""

from __future__ import annotations

import torch
from torch import Tensor


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


def pick_class(values: Tensor, index: Tensor) -> Tensor:
    """From ``(*B, M, A)`` the rows with indices ``(*B)``: ``(*B, A)``."""
    rows = index[..., None, None].expand(*index.shape, 1, values.shape[-1])
    return values.gather(-2, rows).squeeze(-2)
