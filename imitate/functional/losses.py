"""Losses and divergences that several algorithms share: pure, unreduced over the batch.

Distributions of returns are categorical over fixed atoms (C51) or given by quantiles (QR-DQN):
Bellemare, Dabney & Munos, "A Distributional Perspective on Reinforcement Learning", ICML 2017 (arXiv:1707.06887).
Dabney, Rowland, Bellemare & Munos, "Distributional Reinforcement Learning with Quantile Regression", AAAI 2018
(arXiv:1710.10044). Kuznetsov, Shvechikov, Grishin & Vetrov, "Controlling Overestimation Bias with Truncated Mixture of
Continuous Distributional Quantile Critics", ICML 2020 (arXiv:2005.04269).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def cosine_loss(predicted: Tensor, target: Tensor, eps: float = 1e-8) -> Tensor:
    """One minus the cosine of the angle between two vectors.

    Args:
        predicted: (*B, D).
        target: (*B, D).
        eps: smallest norm of a vector.

    Returns:
        (*B,) in [0, 2].
    """
    return 1.0 - torch.cosine_similarity(predicted, target, dim=-1, eps=eps)


def masked_mean(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean of the values where the mask is true; 0 if the mask is false everywhere.

    Args:
        values: (*B).
        mask: (*B), bool or weights; None includes all values.
    """
    if mask is None:
        return values.mean()
    weight = mask.to(values.dtype)
    # torch.where instead of a product, because a padded value may be inf or NaN
    kept = torch.where(weight > 0, values * weight, 0.0)
    return kept.sum() / weight.sum().clamp(min=torch.finfo(values.dtype).tiny)


def step_weights(mask: Tensor | None, weight: Tensor | None) -> Tensor | None:
    """Return the weight (*B) of each step in a mean over steps, which is 0 for padding; None means equal weights.

    Args:
        mask: (*B) bool, false for padding, or None if there is no padding.
        weight: (*B); None: equal weights.
    """
    if weight is None:
        return mask
    return weight if mask is None else weight * mask


def focal_loss(logits: Tensor, target: Tensor, gamma: float = 2.0) -> Tensor:
    """Cross-entropy that weights well predicted classes less: ``-(1 - p)^gamma log p``.

    Lin et al., ICCV 2017, arXiv:1708.02002.

    Args:
        logits: (*B, C), unnormalized.
        target: (*B), int64.
        gamma: focusing exponent; 0 gives the cross-entropy.

    Returns:
        (*B).
    """
    log_p = logits.log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return -((1.0 - log_p.exp()) ** gamma) * log_p


def gaussian_log_prob(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """Log-density of a diagonal Gaussian, from ``(*B, D)`` each to ``(*B,)``."""
    log_two_pi = 1.8378770664093453
    return -0.5 * (var.log() + (x - mean).square() / var + log_two_pi).sum(-1)


def gaussian_kl_to_standard(mean: Tensor, logvar: Tensor) -> Tensor:
    """KL( N(mean, exp(logvar)) || N(0, 1) ), diagonal: ``(*B, D)`` each, to ``(*B,)``."""
    return -0.5 * (1.0 + logvar - mean.square() - logvar.exp()).sum(-1)


def gaussian_kl(mean_p: Tensor, logvar_p: Tensor, mean_q: Tensor, logvar_q: Tensor) -> Tensor:
    """KL( N(mean_p, e^logvar_p) || N(mean_q, e^logvar_q) ), diagonal: ``(*B, D)`` to ``(*B,)``."""
    ratio = (logvar_p - logvar_q).exp()
    distance = (mean_q - mean_p).square() * (-logvar_q).exp()
    return -0.5 * (1.0 + logvar_p - logvar_q - distance - ratio).sum(-1)


def categorical_kl(logits_p: Tensor, logits_q: Tensor) -> Tensor:
    """KL( softmax(logits_p) || softmax(logits_q) ): ``(*B, C)`` unnormalized, to ``(*B,)``."""
    log_p = logits_p.log_softmax(-1)
    return (log_p.exp() * (log_p - logits_q.log_softmax(-1))).sum(-1)


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """Asymmetric squared error ``|expectile - 1(error < 0)| error^2``, of expectile regression.

    Kostrikov et al., ICLR 2022, arXiv:2110.06169.

    Args:
        error: (*B) target minus prediction.
        expectile: in (0, 1); 0.5 gives half the squared error, and towards 1 only positive errors count.

    Returns:
        (*B), unreduced.
    """
    positive = (error > 0).to(error.dtype)
    return (positive * expectile + (1.0 - positive) * (1.0 - expectile)) * error.square()


def advantage_weights(
    advantage: Tensor,
    temperature: float,
    max_advantage: float | None = None,
    max_weight: float | None = None,
) -> Tensor:
    """Return ``exp(advantage / temperature)``, the weights of a regression that prefers good actions.

    Args:
        advantage: (*B).
        temperature: larger values make the weights more equal.
        max_advantage: upper limit of the advantages; None: no limit.
        max_weight: upper limit of the weights; None: no limit.

    Returns:
        (*B), without gradient.
    """
    advantage = advantage.detach()
    if max_advantage is not None:
        advantage = advantage.clamp(max=max_advantage)
    weights = (advantage / temperature).exp()
    return weights if max_weight is None else weights.clamp(max=max_weight)


def make_atoms(low: float, high: float, num_atoms: int) -> Tensor:
    """Return K evenly spaced atoms z_0 = low < ... < z_K-1 = high of a distribution of returns: (K,)."""
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
    # positions in units of the distance between atoms: atom i is at i
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
        atoms: (E, *B, M) atoms of E critics.
        num_dropped: number of atoms dropped per critic, in [0, M).

    Returns:
        (*B, E (M - num_dropped)), ascending.
    """
    size, num = len(atoms), atoms.shape[-1]
    pooled = atoms.movedim(0, -2).flatten(-2).sort(-1).values
    return pooled[..., : size * (num - num_dropped)]


def step_weight(batch: Mapping[str, Any]) -> Tensor | None:
    """Return the loss weight of each action in a batch, which is 0 for padding; None means equal weights.

    Args:
        batch: has ``pad_mask``, false for padding, and ``weight``, both (B, [T,] ...) or absent.
    """
    return step_weights(batch.get("pad_mask"), batch.get("weight"))


def sample_weight(batch: Mapping[str, Any]) -> Tensor | None:
    """Return the weight (B,) of each sample in a batch: the mean weight of its steps without padding.

    The result is None for equal weights. The batch has the keys that :func:`step_weight` describes.
    """
    weight, mask = batch.get("weight"), batch.get("pad_mask")
    if weight is None or weight.dim() == 1:
        return weight
    real = torch.ones_like(weight) if mask is None else mask.to(weight)
    steps = tuple(range(1, weight.dim()))
    mean: Tensor = (weight * real).sum(steps) / real.sum(steps).clamp(min=1.0)
    return mean
