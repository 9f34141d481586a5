"""Distributions of returns: categorical over fixed atoms (C51), or by quantiles (QR-DQN).

Bellemare, Dabney & Munos, "A Distributional Perspective on Reinforcement Learning", ICML 2017 (arXiv:1707.06887).
Dabney, Rowland, Bellemare & Munos, "Distributional Reinforcement Learning with Quantile Regression", AAAI 2018
(arXiv:1710.10044). Kuznetsov, Shvechikov, Grishin & Vetrov, "Controlling Overestimation Bias with Truncated Mixture of
Continuous Distributional Quantile Critics", ICML 2020 (arXiv:2005.04269).
"""

from __future__ import annotations

import torch
from torch import Tensor


def make_atoms(low: float, high: float, num_atoms: int) -> Tensor:
    """Return evenly spaced values z_0 = low < ... < z_K-1 = high: (K,)."""
    return torch.linspace(low, high, num_atoms)


def expected_value(logits: Tensor, atoms: Tensor) -> Tensor:
    """Return the means ``(*B,)`` of categorical distributions with unnormalized logits ``(*B, K)`` over atoms (K,)."""
    return logits.softmax(-1) @ atoms


def shifted_atoms(rewards: Tensor, discount: Tensor, atoms: Tensor) -> Tensor:
    """Apply the Bellman operator r + discount z to atoms: from (B,), (B,) and (K,) to (B, K)."""
    return rewards.unsqueeze(-1) + discount.unsqueeze(-1) * atoms


def project_categorical(probabilities: Tensor, values: Tensor, atoms: Tensor) -> Tensor:
    """Split each value's probability between its two neighbouring atoms, with more for the nearer one.

    Values beyond the atoms are assigned to the outermost atom; without such values, the mean is preserved. If d is the
    distance of neighbouring atoms, atom z receives the fraction max(0, 1 - |v - z| / d) of the probability of a value
    v. This also holds if v is an atom.

    Args:
        probabilities: (*B, J).
        values: (*B, J) values that have these probabilities.
        atoms: (K,) evenly spaced, increasing.

    Returns:
        (*B, K).
    """
    num_atoms = len(atoms)
    low, high = atoms[0], atoms[-1]
    # in units of the atoms' distance, so that atom i is at i
    place = (values.clamp(low, high) - low) * ((num_atoms - 1) / (high - low))
    index = torch.arange(num_atoms, device=atoms.device, dtype=atoms.dtype)
    share = (1.0 - (place.unsqueeze(-1) - index).abs()).clamp(min=0.0)
    return (probabilities.unsqueeze(-2) @ share).squeeze(-2)


def categorical_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return ``-sum_k target_k log p_k`` (*B,), for logits ``(*B, K)`` and target probabilities ``(*B, K)``."""
    return -(target * logits.log_softmax(-1)).sum(-1)


def quantile_regression_loss(quantiles: Tensor, samples: Tensor, *, huber: bool = True) -> Tensor:
    """Quantile regression loss of predicted quantiles at (i + 1/2) / N for samples (arXiv:1710.10044).

    ``sum_i mean_j |t_i - [u_ij < 0]| L(u_ij)`` with t_i = (i + 1/2) / N, u_ij = sample_j - quantile_i, and L the Huber
    loss with threshold 1, or |u|. The minimum is at the quantiles of the samples: the N equally likely values that are
    nearest to the samples in the 1-Wasserstein distance.

    Args:
        quantiles: (*B, N), with gradient.
        samples: (*B, M), equally likely.
        huber: use the Huber loss; false: use |u|.

    Returns:
        (*B,).
    """
    num = quantiles.shape[-1]
    places = (torch.arange(num, device=quantiles.device, dtype=quantiles.dtype) + 0.5) / num
    error = samples.unsqueeze(-2) - quantiles.unsqueeze(-1)
    size = error.abs()
    if huber:
        size = torch.where(size < 1.0, 0.5 * error.square(), size - 0.5)
    below = (error < 0).to(quantiles.dtype)
    return ((places.unsqueeze(-1) - below).abs() * size).mean(-1).sum(-1)


def lowest_atoms(atoms: Tensor, num_dropped: int) -> Tensor:
    """Pool the atoms of several critics and drop the highest ones (arXiv:2005.04269).

    Args:
        atoms: (E, B, M) atoms of E critics.
        num_dropped: number of atoms dropped per critic, in [0, M).

    Returns:
        (B, E (M - num_dropped)), ascending.
    """
    size, batch, num = atoms.shape
    pooled = atoms.transpose(0, 1).reshape(batch, size * num).sort(-1).values
    return pooled[:, : size * (num - num_dropped)]
