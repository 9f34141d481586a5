"""Losses and divergences that several algorithms share: pure, unreduced over the batch."""

from __future__ import annotations

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
    """Return the mean of the values where the mask is true; 0 if it is true nowhere.

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
    """Return the weight of each step in a mean over steps; 0 for padding, None for equal weights.

    Args:
        mask: (*B) bool, true where a step is real; None: all steps are real.
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
    """Asymmetric squared error.

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
