"""Training-time real-time chunking: the policy is given the first actions of its chunk as an input.

Black, Ren, Equi, Levine, "Training-Time Action Conditioning for Efficient Real-Time Chunking", 2025
(arXiv:2512.05964). A prediction that takes d control steps has to continue the d actions that are executed meanwhile.
In training these are actions of the demonstration, for a random delay d per sample; a is the demonstrated chunk and x_t
a noisy one:

    d uniform in 0 .. D                                                      -> draw_given
    input_i = a_i, without noise, for i < d;  x_t,i for the others           -> Given.fill
    loss = sum of the errors at i >= d / number of the actions at i >= d     -> Given.rest
    acting: the planned actions in place of the a_i, in every step from noise to actions

In the paper each action has its own time: that of clean data for i < d, and t for all others. The networks here have
one time and a number per action that marks the given actions, which is the same information for every network. Chunks
may begin before the newest observation, so i counts from the present action; past actions are not given.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Given(NamedTuple):
    """Known actions of a chunk.

    Attributes:
        actions: (B, H, A) normalized; their values do not matter where ``mask`` is false.
        mask: (B, H) bool, true where an action is given.
    """

    actions: Tensor
    mask: Tensor

    def fill(self, chunk: Tensor) -> Tensor:
        """Return chunks (B, H, A) with the given actions filled in."""
        return torch.where(self.mask[..., None], self.actions, chunk)

    def rest(self, weight: Tensor | None) -> Tensor:
        """Return weights (B, H) of a loss on the actions that are not given.

        Args:
            weight: (B, H) weights of the loss, or bool; None: equal weights.
        """
        return ~self.mask if weight is None else weight * ~self.mask


def draw_given(actions: Tensor, first: int, max_delay: int) -> Given | None:
    """Draw the number of given actions for each training sample: 0 to ``max_delay``, all equally likely.

    Args:
        actions: (B, H, A) demonstrated actions.
        first: position of the present action in a chunk.
        max_delay: D, the largest number of given actions.

    Returns:
        The given actions; None if ``max_delay`` is 0.
    """
    if not max_delay:
        return None
    delay = torch.randint(max_delay + 1, (len(actions),), device=actions.device)
    return Given(actions, given_places(delay, first, actions.shape[1]))


def given_places(delay: Tensor, first: int, steps: int) -> Tensor:
    """Mark the positions of the given actions in chunks: (B, steps) bool.

    Args:
        delay: (B,) number of given actions, the present one first.
        first: position of the present action in a chunk.
        steps: H, number of actions in a chunk.
    """
    place = torch.arange(steps, device=delay.device) - first
    return (place >= 0) & (place < delay[:, None])
