"""Encoder core for tokens, such as those of a tokenized language instruction."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from imitate.errors import ConfigError
from imitate.models.layout import Shape


class TokenCore(nn.Module):
    """Mean of the learned embeddings of an observation's tokens; token 0 is padding and is ignored.

    Args:
        input_shape: (L,).
        vocabulary: number of tokens, at least the tokenizer's.
        dim: D, size of an embedding.
    """

    def __init__(self, input_shape: Shape, vocabulary: int = 4096, dim: int = 64) -> None:
        super().__init__()
        if len(input_shape) != 1:
            raise ConfigError(f"TokenCore: tokens have shape {input_shape}; expected a vector (L,)")
        self.vectors = nn.EmbeddingBag(vocabulary, dim, mode="mean", padding_idx=0)
        self.output_shape = (dim,)

    def forward(self, tokens: Tensor) -> Tensor:
        """Encode tokens ``(B, L)`` as ``(B, D)``."""
        mean: Tensor = self.vectors(torch.round(tokens).long())
        return mean
