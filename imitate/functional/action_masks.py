"""Masks of discrete actions: scores and draws of choices, some of which are not allowed."""

from __future__ import annotations

import torch
from torch import Tensor

FORBIDDEN = -1e8
"""Score of a choice that is not allowed. Its probability is 0, and unlike -inf it gives no NaN in entropies."""


def masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores (*B, C), :data:`FORBIDDEN` where the mask (*B, C) is false; None: as they are."""
    return scores if mask is None else scores.masked_fill(~mask, FORBIDDEN)


def uniform_choice(share: Tensor, mask: Tensor | None, num_choices: int) -> Tensor:
    """Choices (B,), each allowed one as likely, from uniform numbers ``share`` (B,) in [0, 1)."""
    if mask is None:
        return (share * num_choices).long().clamp(max=num_choices - 1)
    allowed = mask.sum(-1)
    number = torch.minimum((share * allowed).long(), (allowed - 1).clamp(min=0))
    # The first choice with more than `number` allowed ones up to it.
    return (mask.cumsum(-1) > number.unsqueeze(-1)).int().argmax(-1)
