"""Returns as distributions: categorical over fixed atoms (C51), or by quantiles (QR-DQN).

Bellemare, Dabney & Munos, "A Distributional Perspective on Reinforcement Learning", ICML 2017 (arXiv:1707.06887).
Dabney, Rowland, Bellemare & Munos, "Distributional Reinforcement Learning with Quantile Regression", AAAI 2018
(arXiv:1710.10044). Kuznetsov, Shvechikov, Grishin & Vetrov, "Controlling Overestimation Bias with Truncated Mixture of
Continuous Distributional Quantile Critics", ICML 2020 (arXiv:2005.04269).
"""

from __future__ import annotations

import torch
from torch import Tensor


def make_atoms(low: float, high: float, num_atoms: int) -> Tensor:
    """The values z_0 = low < ... < z_K-1 = high, evenly spaced: (K,)."""
    return torch.linspace(low, high, num_atoms)


def expected_value(logits: Tensor, atoms: Tensor) -> Tensor:
    """Mean of categorical distributions: ``(*B, K)`` unnormalized and (K,), to ``(*B,)``."""
    return logits.softmax(-1) @ atoms


def shifted_atoms(rewards: Tensor, discount: Tensor, atoms: Tensor) -> Tensor:
    """Atoms moved by the Bellman operator, r + discount z: (B,), (B,) and (K,), to (B, K)."""
    return rewards.unsqueeze(-1) + discount.unsqueeze(-1) * atoms


def project_categorical(probabilities: Tensor, values: Tensor, atoms: Tensor) -> Tensor:
    """Split each value's probability between the two atoms beside it, the nearer one getting more.

    Values beyond the atoms count for the outermost one. The mean is kept where none is. With d the distance of
    neighbours, atom z gets of a value v the share max(0, 1 - |v - z| / d), which is also right where v is an atom.

    Args:
        probabilities: (*B, J).
        values: (*B, J) what they are probabilities of.
        atoms: (K,) evenly spaced, increasing.

    Returns:
        (*B, K).
    """
    num_atoms = len(atoms)
    low, high = atoms[0], atoms[-1]
    # In units of the atoms' distance: atom i is at i.
    place = (values.clamp(low, high) - low) * ((num_atoms - 1) / (high - low))
    index = torch.arange(num_atoms, device=atoms.device, dtype=atoms.dtype)
    share = (1.0 - (place.unsqueeze(-1) - index).abs()).clamp(min=0.0)
    return (probabilities.unsqueeze(-2) @ share).squeeze(-2)


def categorical_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """``-sum_k target_k log p_k``: logits ``(*B, K)`` and probabilities ``(*B, K)``, to ``(*B,)``."""
    return -(target * logits.log_softmax(-1)).sum(-1)


def quantile_regression_loss(quantiles: Tensor, samples: Tensor, *, huber: bool = True) -> Tensor:
    """Distance of quantiles at (i + 1/2) / N from those of samples (arXiv:1710.10044).

    ``sum_i mean_j |t_i - [u_ij < 0]| L(u_ij)`` with t_i = (i + 1/2) / N, u_ij = sample_j - quantile_i, and L the Huber
    loss with threshold 1, or |u|. It is least where the quantiles are those of the samples, which is the projection of
    the samples onto N equally likely values that is nearest in the 1-Wasserstein distance.

    Args:
        quantiles: (*B, N), with gradient.
        samples: (*B, M), equally likely.
        huber: round the loss within 1 of 0.

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
    """Pool the atoms of several critics and leave the highest out (arXiv:2005.04269).

    Args:
        atoms: (E, B, M) of E critics.
        num_dropped: per critic, in [0, M).

    Returns:
        (B, E (M - num_dropped)), ascending.
    """
    size, batch, num = atoms.shape
    pooled = atoms.transpose(0, 1).reshape(batch, size * num).sort(-1).values
    return pooled[:, : size * (num - num_dropped)]
