"""Networks that make particles from noise, and networks whose weights are such particles.

z_i ~ N(0, I) is noise, theta_i = G(z_i) a particle, L its loss, w the weight of the repulsion, n the number of draws.
K is the number of noise values that a network f sees, D the length of a particle:

    generator    G(z) = f(z_1..K) + link z; link > 0 makes dG / dz regular if K < D           -> Generator.forward
    amortized    each theta_i moves by a rule of :mod:`imitate.functional.particles`           -> directions
    gpvi         g_i = (1 / n) sum_j k(z_j, z_i) dL/dtheta_j
                       - (w / n) sum_j J_j^-T dk(z_j, z_i)/dz_j, J_j = dG(z_j) / dz_j          -> gpvi
    inverse      [y_1, y_2] = J^-T [v_1, v_2] with J = [[A, 0], [B, 0]] + link I:
                       y_2 = v_2 / link, M y_1 = v_1 - B^T y_2 with M = A^T + link I, damped:
                       (M^T M + e I) y_1 = M^T (v_1 - B^T y_2)                                 -> inverse_products
    update       d weights of f = sum_i g_i . d theta_i / d weights of f: a gradient step on (g * theta).sum()
    hypernetwork theta_i = all weights of an MLP                                               -> WeightLayout, mlp

Amortized: Feng, Wang, Liu, "Learning to Draw Samples with Amortized Stein Variational Gradient Descent", UAI 2017
(arXiv:1707.06626). gpvi: Ratzlaff, Bai, Fuxin, Xu, "Generative Particle Variational Inference via Estimation of
Functional Gradients", ICML 2021 (arXiv:2103.01291). Hypernetwork: Ratzlaff, Fuxin, "HyperGAN", ICML 2019
(arXiv:1901.11058), without its mixer and discriminator.

Departures: the product with the inverse Jacobian is solved by a system of K equations, where the paper learns it with a
network, and damped, because one nearly singular J would outweigh all other draws; svgd and gpvi take means over the
other n - 1 draws instead of a second draw, because the draw itself would add only its gradient to the mean, without
repulsion, which would make the learned distribution too narrow. A weight of the MLP is a number of the particle divided
by the root of the layer's number of inputs, so that particles of unit size give a usual initialization.

To fit samples to a density exp(-L / w):

    generator = Generator(2)
    optimizer = torch.optim.Adam(generator.parameters(), 5e-3)
    for step in range(500):
        optimizer.param_groups[0]["lr"] = 5e-3 * (1 - step / 500)
        noise = generator.draw(128)
        particles = generator(noise)
        (gradients,) = torch.autograd.grad(L(particles).sum(), particles, retain_graph=True)
        moved = directions("svgd", generator, noise, particles.detach(), gradients, weight=1.0)
        optimizer.zero_grad()
        (moved * particles).sum().backward()
        optimizer.step()
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from imitate.functional.kernels import linears
from imitate.functional.particles import RULES, similarity
from imitate.models.mlp import MLP

DAMPING = 0.01
"""Damping e of the inverse Jacobian, as a fraction of its mean squared singular value."""


class Generator(nn.Module):
    """Maps noise to particles.

    Args:
        output_dim: D, length of a particle.
        noise_dim: K, number of noise values that the network sees, at most D with ``link``; None for the smaller of 32
            and D.
        layer_dims: widths of the hidden layers.
        link: factor of the noise (n, D) that is added to the particles; if it is 0, no noise is added, and noise is (n,
            K). With the default, particles begin as the noise, so that the Jacobians of ``gpvi`` are regular.
    """

    def __init__(
        self,
        output_dim: int,
        noise_dim: int | None = None,
        layer_dims: Sequence[int] = (64, 64),
        link: float = 1.0,
    ) -> None:
        super().__init__()
        noise_dim = min(32, output_dim) if noise_dim is None else noise_dim
        if link and noise_dim > output_dim:
            raise ValueError(
                f"noise_dim {noise_dim} exceeds a particle's {output_dim} numbers: lower noise_dim, or set link to 0"
            )
        self.body = MLP(noise_dim, layer_dims)
        self.last = nn.Linear(self.body.output_dim, output_dim)
        self.noise_dim, self.output_dim, self.link = noise_dim, output_dim, link

    def draw(self, count: int) -> Tensor:
        """Draw noise (count, K), or (count, D) with ``link``, on the device of the weights."""
        like = next(self.parameters())
        size = self.output_dim if self.link else self.noise_dim
        return torch.randn(count, size, device=like.device, dtype=like.dtype)

    def forward(self, noise: Tensor) -> Tensor:
        """Map noise (n, K) or (n, D) to particles (n, D)."""
        made: Tensor = self.last(self.body(noise[:, : self.noise_dim]))
        return made + self.link * noise if self.link else made

    @torch.no_grad()
    def jacobian(self, noise: Tensor) -> Tensor:
        """Return the Jacobians (n, D, K) of the network without the link term, without gradient."""
        x = noise[:, : self.noise_dim]
        slopes = torch.eye(self.noise_dim, device=x.device, dtype=x.dtype).expand(len(x), -1, -1)
        for layer in self.body.layers:
            x = layer(x)
            slopes = (cast(Tensor, layer.weight) @ slopes) * (x > 0).unsqueeze(-1)
            x = x.relu()
        return self.last.weight @ slopes


def inverse_products(generator: Generator, noise: Tensor, vectors: Tensor) -> Tensor:
    """Return J^-T v (n, m, D) for m vectors v (n, m, D) per draw; J is the Jacobian of a particle by the noise."""
    seen, link = generator.noise_dim, generator.link
    slopes = generator.jacobian(noise)
    own, rest = slopes[:, :seen], slopes[:, seen:]
    below = vectors[..., seen:] / link if link else vectors[..., seen:]
    right = vectors[..., :seen] - below @ rest
    eye = torch.eye(seen, device=noise.device, dtype=noise.dtype)
    slope = own.mT + link * eye
    square = slope.mT @ slope
    damping = DAMPING * square.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    above: Tensor = torch.linalg.solve(square + damping * eye, slope.mT @ right.mT).mT
    return torch.cat([above, below], -1)


def gpvi(generator: Generator, noise: Tensor, gradients: Tensor, weight: float) -> Tensor:
    """Return the directions (n, D) of generative particle variational inference, with a kernel of the noise.

    Args:
        generator: generator with ``link`` above 0, or with as many noise values as outputs.
        noise: (n, D).
        gradients: (n, D) gradients of the loss with respect to the particles.
        weight: strength of the repulsion.
    """
    near, width = similarity(noise)
    # gradients of the kernel with respect to its first argument: vectors[j, i] = dk(z_j, z_i) / dz_j
    vectors = (-2.0 / width) * near.unsqueeze(-1) * (noise.unsqueeze(1) - noise)
    pushed = inverse_products(generator, noise, vectors).sum(0)
    return _of_others((near @ gradients - weight * pushed) / len(noise), gradients)


def _of_others(moved: Tensor, gradients: Tensor) -> Tensor:
    """Convert means over all n draws to means over the n - 1 other draws, by removing each draw's own gradient."""
    count = len(moved)
    return (count * moved - gradients) / (count - 1)


def directions(
    rule: str,
    generator: Generator,
    noise: Tensor,
    particles: Tensor,
    gradients: Tensor,
    weight: float,
) -> Tensor:
    """Return the directions (n, D) of generated particles (n, D) by ``gpvi`` or a rule of ``functional.particles``."""
    if rule == "gpvi":
        return gpvi(generator, noise, gradients, weight)
    moved = RULES[rule](particles, gradients, weight)
    return _of_others(moved, gradients) if rule == "svgd" else moved


class WeightLayout:
    """Order of an MLP's weights in a particle: for each layer the matrix (in, out), then the biases (out)."""

    def __init__(self, widths: Sequence[int]) -> None:
        self.pairs = list(zip(widths[:-1], widths[1:], strict=True))
        self.size = sum(n * m + m for n, m in self.pairs)
        """Number of weights, D."""

    def layers(self, particles: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Split particles (E, D) into the weights (E, in, out) and biases (E, out) of each layer."""
        found, start = [], 0
        for n, m in self.pairs:
            scaled = particles[:, start : start + n * m + m] / math.sqrt(n)
            found.append((scaled[:, : n * m].reshape(-1, n, m), scaled[:, n * m :]))
            start += n * m + m
        return found


def mlp(layout: WeightLayout, particles: Tensor, x: Tensor) -> Tensor:
    """Map features (E, B, D) by the MLPs whose weights are particles (E, D'); the last layer is linear."""
    layers = layout.layers(particles)
    for weight, bias in layers[:-1]:
        x = linears(x, weight, bias).relu()
    return linears(x, *layers[-1])
