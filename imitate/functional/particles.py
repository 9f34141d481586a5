"""Directions in which n particles descend a loss together without collapsing to one point.

A particle is a point, such as the weights of a member of an ensemble, or its outputs on a batch. theta_i are n
particles, G_i = dL/dtheta_i their gradients. The kernel is k_ij = exp(-|theta_i - theta_j|^2 / h), h = median
|theta_i - theta_j|^2 / log n. The sum r_i = sum_j dk_ij / dtheta_j = (2 / h) sum_j k_ij (theta_i - theta_j) points
away from the others.

    svgd    g_i = (1 / n) sum_j k_ij G_j - (weight / n) r_i                     -> svgd
    gfsf    g_i = G_i - weight [(K + 1e-4 I)^-1 r]_i                            -> gfsf
    minmax  g = -f, f maximizes E[-G . f + weight tr(df / dtheta)] - 10 E|f|^2  -> stein_objective

Descending g moves particles that start anywhere towards samples of the density exp(-L / weight); with weight 0, towards
minima of L.

svgd: Liu and Wang, "Stein Variational Gradient Descent", NeurIPS 2016 (arXiv:1608.04471). gfsf: Liu et al.,
"Understanding and Accelerating Particle-Based Variational Inference", ICML 2019 (arXiv:1807.01750). minmax: Grathwohl
et al., "Learning the Stein Discrepancy for Training and Evaluating Energy-Based Models without Sampling", ICML 2020
(arXiv:2002.05616). Departure: the median is over pairs of different particles, because for few particles the zeros of
the diagonal would be the median.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

RIDGE = 1e-4
"""Number that is added to the diagonal of the kernel before it is inverted."""
PENALTY = 10.0
"""Weight of E|f|^2, which bounds the function of ``minmax``."""


def similarity(particles: Tensor) -> tuple[Tensor, Tensor]:
    """Return the kernel (n, n) of particles (n, D) and its width h (); no gradient."""
    centred = _centred(particles)
    products = centred @ centred.t()
    squares = products.diagonal()
    distances = (squares.unsqueeze(1) + squares - 2.0 * products).clamp(min=0.0)
    count = len(particles)
    width = torch.ones_like(distances[0, 0])
    if count > 1:
        first, second = torch.triu_indices(count, count, 1, device=particles.device)
        median = distances[first, second].median() / math.log(count)
        width = torch.where(median > 0, median, width)
    return (-distances / width).exp(), width


def _centred(particles: Tensor) -> Tensor:
    """Subtract the mean of the particles, because distances between points far from 0 are inexact."""
    return (particles - particles.mean(0)).detach()


def kernel(particles: Tensor) -> tuple[Tensor, Tensor]:
    """Return the kernel (n, n) and the repulsion r (n, D) of particles (n, D), without gradient."""
    centred = _centred(particles)
    near, width = similarity(particles)
    away = (2.0 / width) * (near.sum(1, keepdim=True) * centred - near @ centred)
    return near, away


def svgd(particles: Tensor, gradients: Tensor, weight: float) -> Tensor:
    """Return the directions (n, D) of Stein variational gradient descent.

    Args:
        particles: (n, D).
        gradients: (n, D) gradients of the loss.
        weight: strength of the repulsion; 0: no repulsion, but neighbours still share gradients.
    """
    near, away = kernel(particles)
    return (near @ gradients - weight * away) / len(particles)


def gfsf(particles: Tensor, gradients: Tensor, weight: float) -> Tensor:
    """Return the directions (n, D) of gradient flow with smoothed functions. Arguments are those of :func:`svgd`."""
    near, away = kernel(particles)
    ridge = RIDGE * torch.eye(len(near), device=near.device, dtype=near.dtype)
    # solve_ex does not check the result, which would make the CPU wait for a GPU; the ridge makes the matrix invertible
    solved: Tensor = torch.linalg.solve_ex(near + ridge, away)[0]
    return gradients - weight * solved


def plain(particles: Tensor, gradients: Tensor, weight: float) -> Tensor:
    """Return the gradients unchanged, so that particles are independent (rule ``none``)."""
    return gradients


RULES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "svgd": svgd,
    "gfsf": gfsf,
    "none": plain,
}
"""Rules by name: functions of particles, gradients and weight that return directions. ``minmax`` is not here."""


def stein_objective(
    function: Callable[[Tensor], Tensor],
    particles: Tensor,
    gradients: Tensor,
    weight: float,
    probe: Tensor,
) -> Tensor:
    """Return the scalar that the function of ``minmax`` maximizes.

    Args:
        function: f, maps particles (*B, D) to (*B, D), each row by itself.
        particles: (*B, D).
        gradients: (*B, D) gradients of the loss.
        weight: strength of the repulsion.
        probe: (*B, D) random signs, for Hutchinson's estimate of the trace: v . (df / dtheta) v.
    """
    points = particles.detach().requires_grad_()
    with torch.enable_grad():
        moved = function(points)
        (slope,) = torch.autograd.grad((moved * probe).sum(), points, create_graph=True)
    value = weight * (slope * probe).sum(-1) - (gradients * moved).sum(-1)
    return (value - PENALTY * moved.square().sum(-1)).mean()
