"""Masks of discrete actions: choices that the environment does not allow are never taken and have no probability.

Huang and Ontanon, "A Closer Look at Invalid Action Masking in Policy Gradient Algorithms" (arXiv:2006.14171).

A mask is an observation of modality ``mask``, (C,) of 1 (allowed) and 0, so that it is collected, stored, sampled and
sent like any other. Networks do not see it: it acts on their scores of the choices alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor

from imitate.errors import EnvError
from imitate.functional.action_masks import masked
from imitate.models.heads import ActionDistribution

PolicyT = TypeVar("PolicyT", bound=ActionDistribution)


class ActionMask:
    """Slot of an algorithm: the choices that the environment allows.

    Args:
        key: the observation that holds them; None: all choices are allowed.
    """

    def __init__(self, key: str | None) -> None:
        self.key = key

    def of(self, obs: Mapping[str, Tensor]) -> Tensor | None:
        """Allowed choices (B, C), bool, at observations (B, ...) or stacked frames (B, F, ...); None: all."""
        if self.key is None:
            return None
        mask = obs[self.key] > 0.5
        return mask[:, -1] if mask.dim() == 3 else mask

    def to_act(self, obs: Mapping[str, Tensor]) -> Tensor | None:
        """As :meth:`of`, where one of the choices has to be taken.

        Raises:
            EnvError: none is allowed.
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
        """The policy's distribution at observations (B, ...), over the allowed choices."""
        return restricted(policy, self.of(obs))

    def scores(self, scores: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """Scores or values (B, C) of choices, least where they are not allowed."""
        return masked(scores, self.of(obs))

    @property
    def keys(self) -> tuple[str, ...]:
        """The key, or nothing."""
        return () if self.key is None else (self.key,)

    def log_counts(self, obs: Mapping[str, Tensor]) -> Tensor | None:
        """Logarithms (B,) of the numbers of allowed choices: the greatest entropies; None: all are allowed."""
        mask = self.of(obs)
        return None if mask is None else mask.sum(-1).clamp(min=1).float().log()


def restricted(policy: PolicyT, mask: Tensor | None) -> PolicyT:
    """A distribution over the choices of the mask (*B, C); None: all."""
    return policy if mask is None else policy.restricted(mask)
