"""The conservative term of CQL: how much a critic overestimates actions that are not in the data.

Kumar, Zhou, Tucker & Levine, "Conservative Q-Learning for Offline Reinforcement Learning", NeurIPS 2020
(arXiv:2006.04779).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def uniform_log_density(action_dim: int) -> float:
    """Log-density of the uniform distribution over [-1, 1]^A."""
    return -action_dim * math.log(2.0)


def sampled_logsumexp(q: Tensor, log_density: Tensor) -> Tensor:
    """Estimate of ``log of the integral of exp(Q(s, a)) over a`` by importance samples.

    The samples may come from several distributions, the same number from each; their estimates are averaged.

    Args:
        q: (*E, B, N) values of N sampled actions.
        log_density: (B, N) log-density of each sample under the distribution that it was drawn from.

    Returns:
        (*E, B).
    """
    return torch.logsumexp(q - log_density, dim=-1) - math.log(q.shape[-1])


def calibrated(q: Tensor, reference: Tensor) -> Tensor:
    """Values that are pushed down only as far as a reference policy's values (Cal-QL).

    Nakamoto et al., NeurIPS 2023 (arXiv:2303.05479). A value below the reference has no gradient.

    Args:
        q: (*E, B, N) values of N actions of the policy.
        reference: (B,) values of the reference policy in the same states.

    Returns:
        (*E, B, N) ``max(q, reference)``.
    """
    return torch.maximum(q, reference.unsqueeze(-1))
