"""Mixed actions: a choice and continuous numbers, [one-hot of C choices | A - C numbers in [-1, 1]]."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from typing_extensions import Self

from imitate.functional.sampling import pick_class
from imitate.models.categorical import Categorical, CategoricalHead
from imitate.models.heads import (
    ActionDistribution,
    ActionHead,
    Gaussian,
    GaussianHead,
    TanhDistribution,
)


class Mixed(ActionDistribution):
    """Distribution of a choice, and of numbers that depend on the choice.

    Attributes:
        choice: (*B, C) distribution of the choice.
        numbers: distribution of the numbers for each choice, with batch shape (*B, C).
    """

    def __init__(self, choice: Categorical, numbers: TanhDistribution) -> None:
        self.choice, self.numbers = choice, numbers

    @property
    def mean(self) -> Tensor:
        """The most likely choice with the mean of its numbers, ``(*B, A)``."""
        return self._joined(self.choice.mean, self.numbers.mean)

    def log_prob(self, actions: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return log-densities ``(*B,)`` of actions ``(*B, A)``: of the choice plus of its numbers."""
        choices = self.choice.logits.shape[-1]
        chosen, numbers = actions[..., :choices], actions[..., choices:].unsqueeze(-2)
        each = self.numbers.log_prob(numbers.expand_as(self.numbers.mean))
        return self.choice.log_prob(chosen) + (chosen * each).sum(-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Sample actions ``(*B, A)``."""
        return self._joined(self.choice.sample(generator), self.numbers.sample(generator))

    def restricted(self, allowed: Tensor) -> Self:
        """Return the distribution over the choices that are ``allowed``, (*B, C) bool."""
        return type(self)(self.choice.restricted(allowed), self.numbers)

    @staticmethod
    def _joined(chosen: Tensor, numbers: Tensor) -> Tensor:
        """Concatenate a choice (*B, C) with its entry of the numbers (*B, C, A - C)."""
        return torch.cat([chosen, pick_class(numbers, chosen.argmax(-1))], dim=-1)


class MixedHead(ActionHead):
    """Head with logits of C choices, and for each choice a tanh-Gaussian over N numbers.

    Args:
        input_dim: number of features.
        num_choices: C, number of choices.
        num_continuous: N, number of continuous numbers.
        gaussian: further arguments of :class:`GaussianHead`, with ``use_tanh``.
    """

    def __init__(
        self, input_dim: int, num_choices: int, num_continuous: int, **gaussian: Any
    ) -> None:
        super().__init__()
        self.choice = CategoricalHead(input_dim, num_choices)
        self.numbers = GaussianHead(input_dim, num_choices * num_continuous, **gaussian)
        self.shape = (num_choices, num_continuous)

    def forward(self, features: Tensor, *, low_noise: bool = False) -> Mixed:
        """Return the distribution; ``low_noise`` only affects the numbers."""
        flat = cast(TanhDistribution, self.numbers(features, low_noise=low_noise))
        base = cast(Gaussian, flat.base)
        shape = (*features.shape[:-1], *self.shape)
        each = Gaussian(base.mean.reshape(shape), base.stds.reshape(shape))
        return Mixed(self.choice(features), TanhDistribution(each))

    def act(
        self, features: Tensor, explore: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return a sample to explore, else the most likely choice with the mean of its numbers."""
        actions = self.forward(features)
        return actions.sample(generator) if explore else actions.mean
