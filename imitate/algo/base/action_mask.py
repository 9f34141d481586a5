"""Masks of discrete actions: choices that the environment does not allow have probability 0.

Huang and Ontanon, "A Closer Look at Invalid Action Masking in Policy Gradient Algorithms" (arXiv:2006.14171).

A mask is an observation of modality ``mask``, (C,) of 1 (allowed) and 0, so that it is collected, stored, sampled and
sent like any other observation. Networks do not see it; it only masks their scores of the choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor

from imitate.errors import EnvError
from imitate.models.categorical import masked
from imitate.models.heads import ActionDistribution

PolicyT = TypeVar("PolicyT", bound=ActionDistribution)


class ActionMask:
    """Slot of an algorithm: the choices that the environment currently allows.

    Args:
        key: key of the observation that contains the mask; None: all choices are allowed.
    """

    def __init__(self, key: str | None) -> None:
        self.key = key

    def of(self, obs: Mapping[str, Tensor]) -> Tensor | None:
        """Return the allowed choices (B, C), bool, from observations (B, ...) or stacked frames (B, F, ...).

        Returns None if there is no mask.
        """
        if self.key is None:
            return None
        mask = obs[self.key] > 0.5
        return mask[:, -1] if mask.dim() == 3 else mask

    def to_act(self, obs: Mapping[str, Tensor]) -> Tensor | None:
        """Return the allowed choices like :meth:`of`, for a step at which a choice has to be made.

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
        """Return the key of the mask in a tuple, or an empty tuple if no observation is a mask."""
        return () if self.key is None else (self.key,)

    def log_counts(self, obs: Mapping[str, Tensor]) -> Tensor | None:
        """Return the logarithms (B,) of the numbers of allowed choices, which are the largest entropies.

        Returns None if there is no mask.
        """
        mask = self.of(obs)
        return None if mask is None else mask.sum(-1).clamp(min=1).float().log()


def restricted(policy: PolicyT, mask: Tensor | None) -> PolicyT:
    """Restrict a distribution to the choices of the mask (*B, C); None: all choices."""
    return policy if mask is None else policy.restricted(mask)
