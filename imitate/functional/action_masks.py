"""Masks of discrete actions: scores and random choices among the allowed actions."""

from __future__ import annotations

import torch
from torch import Tensor

FORBIDDEN = -1e8
"""Score of a choice that is not allowed. Its probability is 0, and unlike -inf it gives no NaN in entropies."""


def masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Set the scores (*B, C) to :data:`FORBIDDEN` where the mask (*B, C) is false. A mask of None changes nothing."""
    return scores if mask is None else scores.masked_fill(~mask, FORBIDDEN)


def uniform_choice(share: Tensor, mask: Tensor | None, num_choices: int) -> Tensor:
    """Map uniform numbers ``share`` (B,) in [0, 1) to choices (B,), so that each allowed choice is equally likely."""
    if mask is None:
        return (share * num_choices).long().clamp(max=num_choices - 1)
    allowed = mask.sum(-1)
    number = torch.minimum((share * allowed).long(), (allowed - 1).clamp(min=0))
    # The result is the first index up to which more than `number` choices are allowed.
    return (mask.cumsum(-1) > number.unsqueeze(-1)).int().argmax(-1)
