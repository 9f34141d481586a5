"""Actions of a choice and of numbers beside it: [one-hot of C choices | A - C numbers in [-1, 1]]."""

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
    """A choice, and numbers whose distribution depends on it.

    Attributes:
        choice: (*B, C).
        numbers: of each choice, batch shape (*B, C).
    """

    def __init__(self, choice: Categorical, numbers: TanhDistribution) -> None:
        self.choice, self.numbers = choice, numbers

    @property
    def mean(self) -> Tensor:
        """The most likely choice with the mean of its numbers, ``(*B, A)``."""
        return self._joined(self.choice.mean, self.numbers.mean)

    def log_prob(self, actions: Tensor, weight: Tensor | None = None) -> Tensor:
        """``(*B, A)`` to ``(*B,)``: log-probability of the choice plus log-density of its numbers."""
        choices = self.choice.logits.shape[-1]
        chosen, numbers = actions[..., :choices], actions[..., choices:].unsqueeze(-2)
        each = self.numbers.log_prob(numbers.expand_as(self.numbers.mean))
        return self.choice.log_prob(chosen) + (chosen * each).sum(-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """``(*B, A)``."""
        return self._joined(self.choice.sample(generator), self.numbers.sample(generator))

    def restricted(self, allowed: Tensor) -> Self:
        """See the base class."""
        return type(self)(self.choice.restricted(allowed), self.numbers)

    @staticmethod
    def _joined(chosen: Tensor, numbers: Tensor) -> Tensor:
        """A choice (*B, C) with its own of the numbers (*B, C, A - C)."""
        return torch.cat([chosen, pick_class(numbers, chosen.argmax(-1))], dim=-1)


class MixedHead(ActionHead):
    """Logits of C choices, and for each of them a tanh-Gaussian over N numbers.

    Args:
        input_dim: features.
        num_choices: C.
        num_continuous: N.
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
        """``low_noise`` concerns the numbers."""
        flat = cast(TanhDistribution, self.numbers(features, low_noise=low_noise))
        base = cast(Gaussian, flat.base)
        shape = (*features.shape[:-1], *self.shape)
        each = Gaussian(base.mean.reshape(shape), base.stds.reshape(shape))
        return Mixed(self.choice(features), TanhDistribution(each))

    def act(
        self, features: Tensor, explore: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """A sample to explore, else the most likely choice with the mean of its numbers."""
        actions = self.forward(features)
        return actions.sample(generator) if explore else actions.mean
