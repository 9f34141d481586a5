"""Formulas of adversarial imitation: a discriminator between expert and policy transitions, with absorbing states.

With the probability D that a transition is the expert's, the logit is l = log D - log(1 - D). A terminal is followed by
an absorbing state, which is never left (Kostrikov et al., "Discriminator-Actor-Critic", ICLR
2019, arXiv:1809.02925). Without it, rewards that are never negative would favour long episodes, and rewards that are
never positive short ones.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from imitate.functional.losses import masked_mean


def discriminator_loss(
    logits: Tensor, absorbing: Tensor, expert: Tensor, terminals: Tensor
) -> Tensor:
    """Cross-entropy: mean of -log D over the expert's transitions plus mean of -log(1 - D) over the policy's.

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
    """Add the return of the absorbing state to the reward of each terminal: discount / (1 - discount) times its reward.

    Args:
        rewards: (B,) rewards of the transitions.
        absorbing: () reward of a step in the absorbing state.
        terminals: (B,) 1 or 0.
        discount: in [0, 1]; the factor is limited to 1000, since otherwise the absorbing state would dominate.

    Returns:
        (B,) rewards.
    """
    steps = discount / max(1.0 - discount, 1e-3)
    return rewards + steps * absorbing * terminals
