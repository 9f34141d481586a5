"""Losses of implicit Q-learning and of advantage-weighted regression."""

from __future__ import annotations

from torch import Tensor


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
        temperature: the larger, the more equal are the weights.
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
