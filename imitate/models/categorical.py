"""Distributions of discrete actions, one-hot, with masks of the allowed choices, and combined with continuous actions.

Choices that the environment does not allow have probability 0 (Huang and Ontanon, "A Closer Look at Invalid Action
Masking in Policy Gradient Algorithms", arXiv:2006.14171). A mask is an observation of modality ``mask``, (C,) of 1
(allowed) and 0, so that it is collected, stored, sampled and sent like any other observation. Networks do not see it;
it only masks their scores of the choices.
"""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from typing_extensions import Self

from imitate.errors import EnvError
from imitate.functional.sampling import draw_class, pick_class
from imitate.models.heads import (
    ActionDistribution,
    ActionHead,
    Gaussian,
    GaussianHead,
    TanhDistribution,
)
from imitate.models.mlp import FullPrecisionLinear

FORBIDDEN = -1e8
"""Score of a choice that is not allowed. Its probability is 0, and unlike -inf it causes no NaN in entropies."""


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
        """The most likely choice, one-hot (*B, A), which takes the place of a mean."""
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
        """Restrict the distribution to the choices that are ``allowed``, (*B, C) bool."""
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
        """Return a sample if ``explore``, else the most likely choice."""
        choices = self.forward(features)
        return choices.sample(generator) if explore else choices.mean


def one_hot(choice: Tensor, like: Tensor) -> Tensor:
    """Convert indices ``(*B,)`` to one-hot ``(*B, A)`` with the shape and dtype of ``like``, without gradient."""
    return torch.zeros_like(like).scatter_(-1, choice.unsqueeze(-1), 1.0).detach()


class Mixed(ActionDistribution):
    """Distribution of a choice, and of numbers that depend on the choice.

    Attributes:
        choice: (*B, C) distribution of the choice.
        numbers: distribution of the continuous numbers for each choice, with batch shape (*B, C).
    """

    def __init__(self, choice: Categorical, numbers: TanhDistribution) -> None:
        self.choice, self.numbers = choice, numbers

    @property
    def mean(self) -> Tensor:
        """The most likely choice with the mean of its numbers, ``(*B, A)``."""
        return self._joined(self.choice.mean, self.numbers.mean)

    def log_prob(self, actions: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return log-densities ``(*B,)`` of actions ``(*B, A)``: those of the choice plus those of its numbers."""
        choices = self.choice.logits.shape[-1]
        chosen, numbers = actions[..., :choices], actions[..., choices:].unsqueeze(-2)
        each = self.numbers.log_prob(numbers.expand_as(self.numbers.mean))
        return self.choice.log_prob(chosen) + (chosen * each).sum(-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Sample actions ``(*B, A)``."""
        return self._joined(self.choice.sample(generator), self.numbers.sample(generator))

    def restricted(self, allowed: Tensor) -> Self:
        """Restrict the distribution to the choices that are ``allowed``, (*B, C) bool."""
        return type(self)(self.choice.restricted(allowed), self.numbers)

    @staticmethod
    def _joined(chosen: Tensor, numbers: Tensor) -> Tensor:
        """Concatenate a one-hot choice (*B, C) with the numbers of that choice, selected from (*B, C, A - C)."""
        return torch.cat([chosen, pick_class(numbers, chosen.argmax(-1))], dim=-1)


class MixedHead(ActionHead):
    """Head with logits of C choices, and for each choice a tanh-Gaussian over N numbers.

    Args:
        input_dim: number of features.
        num_choices: C, number of choices.
        num_continuous: N, number of continuous numbers.
        gaussian: further arguments of :class:`GaussianHead`, of which ``use_tanh`` must be true.
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
        """Return a sample if ``explore``, else the most likely choice with the mean of its numbers."""
        actions = self.forward(features)
        return actions.sample(generator) if explore else actions.mean


PolicyT = TypeVar("PolicyT", bound=ActionDistribution)


class ActionMask:
    """Mask of the choices that the environment currently allows, read from an observation.

    Args:
        key: key of the observation that contains the mask; None if all choices are always allowed.
    """

    def __init__(self, key: str | None) -> None:
        self.key = key

    def of(self, obs: Mapping[str, Tensor]) -> Tensor | None:
        """Return the allowed choices (B, C), bool, from observations (B, ...) or stacked frames (B, F, ...).

        The result is None if no observation is a mask.
        """
        if self.key is None:
            return None
        mask = obs[self.key] > 0.5
        return mask[:, -1] if mask.dim() == 3 else mask

    def to_act(self, obs: Mapping[str, Tensor]) -> Tensor | None:
        """Return the allowed choices like :meth:`of`, for a step at which the policy acts.

        Raises:
            EnvError: no choice is allowed.
        """
        mask = self.of(obs)
        if mask is not None and not bool(mask.any(-1).all()):
            row = int((~mask.any(-1)).nonzero()[0, 0])
            raise EnvError(
                f"observation '{self.key}' allows no choice (all {mask.shape[-1]} are 0, row {row} of {len(mask)}): "
                "allow at least one in each state that does not end the episode"
            )
        return mask

    def policy(self, policy: PolicyT, obs: Mapping[str, Tensor]) -> PolicyT:
        """Restrict the policy's distribution at observations (B, ...) to the allowed choices."""
        return restricted(policy, self.of(obs))

    def scores(self, scores: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """Set the scores or values (B, C) of choices that are not allowed to the lowest value."""
        return masked(scores, self.of(obs))

    @property
    def keys(self) -> tuple[str, ...]:
        """Tuple with the key of the mask; empty if no observation is a mask."""
        return () if self.key is None else (self.key,)

    def log_counts(self, obs: Mapping[str, Tensor]) -> Tensor | None:
        """Return the logarithms (B,) of the number of allowed choices: the largest possible entropies, in nats.

        The result is None if no observation is a mask.
        """
        mask = self.of(obs)
        return None if mask is None else mask.sum(-1).clamp(min=1).float().log()


def restricted(policy: PolicyT, mask: Tensor | None) -> PolicyT:
    """Restrict a distribution to the choices of the mask (*B, C); None allows all choices."""
    return policy if mask is None else policy.restricted(mask)
