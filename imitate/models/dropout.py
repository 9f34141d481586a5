"""Dropout that draws few random numbers on a CPU, where torch's takes as long as a matrix product."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

_LEVELS = 2**16
_PER_DRAW = 4
"""Values that a drawn number of 64 bits decides on, by one of these levels each."""


class Dropout(nn.Dropout):
    """:class:`torch.nn.Dropout`, by :func:`drop` on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """``(...) -> (...)``."""
        if _drops(x, self.p, self.training):
            return drop(x, self.p)
        return super().forward(x)


def attend(
    attention: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """Call an attention layer, with :func:`drop` on a CPU.

    Args:
        attention: with ``batch_first``, one size of queries, keys and values, and biases.
        query: (B, S, E).
        key, value: (B, T, E).
        mask: (B, T) bool, true for what is seen; None: all.

    Returns:
        (B, S, E).
    """
    hidden = None if mask is None else ~mask
    if not _drops(query, attention.dropout, attention.training):
        y, _ = attention(query, key, value, key_padding_mask=hidden, need_weights=False)
        return cast(Tensor, y)
    maps = zip(attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True)
    heads = (attention.num_heads, attention.head_dim)
    q, k, v = (
        F.linear(x, weight, bias).view(*x.shape[:2], *heads).transpose(1, 2)
        for x, (weight, bias) in zip((query, key, value), maps, strict=True)
    )
    scores = (q * attention.head_dim**-0.5) @ k.transpose(-2, -1)
    if hidden is not None:
        scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
    mixed = drop(scores.softmax(-1), attention.dropout) @ v
    return cast(Tensor, attention.out_proj(mixed.transpose(1, 2).flatten(2)))


def drop(x: Tensor, p: float) -> Tensor:
    """Set values to zero with probability ``p`` and scale the others, so that the expectation is ``x``.

    Args:
        x: (...) on the CPU.
        p: above 0, below 1; rounded to a multiple of 2^-16, at least one of them and fewer than all.
    """
    dropped = min(max(round(p * _LEVELS), 1), _LEVELS - 1)
    count = x.numel()
    drawn = torch.empty(-(-count // _PER_DRAW), dtype=torch.int64).random_(-(2**63), None)
    parts = drawn.view(torch.int16)[:count].view(x.shape)
    kept = parts >= dropped - _LEVELS // 2
    return x * kept.to(x.dtype).mul_(_LEVELS / (_LEVELS - dropped))


def _drops(x: Tensor, p: float, training: bool) -> bool:
    """Return true where :func:`drop` takes the place of torch's."""
    compiles = torch.compiler.is_compiling()
    return training and 0.0 < p < 1.0 and x.device.type == "cpu" and not compiles
