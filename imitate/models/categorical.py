"""Distribution and head for discrete actions, which are one-hot vectors."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Self

from imitate.functional.action_masks import masked
from imitate.functional.sampling import draw_class
from imitate.models.heads import ActionDistribution, ActionHead
from imitate.models.mlp import FullPrecisionLinear


class Categorical(ActionDistribution):
    """Distribution over A choices; actions are one-hot, (*B, A).

    Attributes:
        logits: (*B, A) normalized logits: logarithms of the probabilities.
    """

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits.log_softmax(-1)

    @property
    def probabilities(self) -> Tensor:
        """Probabilities ``(*B, A)``."""
        return self.logits.exp()

    @property
    def mean(self) -> Tensor:
        """The most likely choice, one-hot, because choices have no mean."""
        return one_hot(self.logits.argmax(-1), self.logits)

    def log_prob(self, actions: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return log-probabilities ``(*B,)`` of one-hot actions ``(*B, A)``."""
        return (actions * self.logits).sum(-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Sample one-hot actions ``(*B, A)``."""
        return one_hot(draw_class(self.logits, generator), self.logits)

    def entropy(self) -> Tensor:
        """Return the entropy ``(*B,)`` in nats."""
        return -(self.probabilities * self.logits).sum(-1)

    def restricted(self, allowed: Tensor) -> Self:
        """Return the distribution over the choices that are ``allowed``, (*B, C) bool."""
        return type(self)(masked(self.logits, allowed))


class CategoricalHead(ActionHead):
    """A linear map to the logits of A choices.

    Args:
        input_dim: number of features.
        num_choices: A, number of choices.
    """

    def __init__(self, input_dim: int, num_choices: int) -> None:
        super().__init__()
        self.logits = FullPrecisionLinear(input_dim, num_choices)

    def forward(self, features: Tensor, *, low_noise: bool = False) -> Categorical:
        """Return the distribution; ``low_noise`` has no effect."""
        return Categorical(self.logits(features))

    def act(
        self, features: Tensor, explore: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return a sample to explore, else the most likely choice."""
        choices = self.forward(features)
        return choices.sample(generator) if explore else choices.mean


def one_hot(choice: Tensor, like: Tensor) -> Tensor:
    """Convert indices ``(*B,)`` to one-hot ``(*B, A)`` with the shape and dtype of ``like``, without gradient."""
    return torch.zeros_like(like).scatter_(-1, choice.unsqueeze(-1), 1.0).detach()
