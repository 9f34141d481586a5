"""Formulas of adversarial imitation: telling transitions of an expert from a policy's, with absorbing states.

With the probability D that a transition is the expert's, the logit is l = log D - log(1 - D). A terminal is followed by
an absorbing state, in which everything stays as it is for ever (Kostrikov et al., "Discriminator-Actor-Critic", ICLR
2019, arXiv:1809.02925). Without it a reward that is never negative would favour long episodes, and one that is never
positive short ones.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from imitate.functional.losses import masked_mean


def discriminator_loss(
    logits: Tensor, absorbing: Tensor, expert: Tensor, terminals: Tensor
) -> Tensor:
    """Cross-entropy: mean of -log D over the expert's steps plus mean of -log(1 - D) over the policy's.

    Each terminal counts as one more step, in the absorbing state.

    Args:
        logits: (B,) l.
        absorbing: () logit of the absorbing state.
        expert: (B,) 1 for the expert's transitions, 0 for the policy's.
        terminals: (B,) 1 or 0.

    Returns:
        () loss.
    """
    each = torch.cat([logits, absorbing.expand_as(logits)])
    of_expert = torch.cat([expert, expert * terminals])
    of_policy = torch.cat([1.0 - expert, (1.0 - expert) * terminals])
    return masked_mean(softplus(-each), of_expert) + masked_mean(softplus(each), of_policy)


def with_absorbing_state(
    rewards: Tensor, absorbing: Tensor, terminals: Tensor, discount: float
) -> Tensor:
    """Rewards to which each terminal adds the return of the absorbing state: discount / (1 - discount) its reward.

    Args:
        rewards: (B,).
        absorbing: () reward of a step in the absorbing state.
        terminals: (B,) 1 or 0.
        discount: in [0, 1]; the factor is at most 1000, since else the absorbing state alone would count.

    Returns:
        (B,).
    """
    steps = discount / max(1.0 - discount, 1e-3)
    return rewards + steps * absorbing * terminals
