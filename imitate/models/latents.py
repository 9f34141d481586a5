"""Latent variables of a VAE: each class is a posterior family together with its prior.

Departure from robomimic: the uniform categorical prior is sampled randomly even for one latent dimension. robomimic
assigns the classes in turn along the batch, so that the policies of a batch would not be independent.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from imitate.functional.losses import (
    categorical_kl,
    gaussian_kl,
    gaussian_kl_to_standard,
    gaussian_log_prob,
)
from imitate.functional.sampling import draw_class, pick_class
from imitate.models.mlp import MultiHeadMLP

Params = dict[str, Tensor]

_LOGSTD_LIMITS = (-4.0, 15.0)  # used in samples of the sampled KL
_LOGVAR_LIMITS = (-8.0, 30.0)  # in the sampled KL


class PriorParams(nn.Module):
    """Learned parameters of a prior: computed from the condition by an MLP, or the same for all conditions.

    Args:
        shapes: shape of each parameter, without batch dimensions.
        condition_dim: size of the condition; None for parameters that do not depend on it.
        layer_dims: widths of the hidden layers of the MLP.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        condition_dim: int | None,
        layer_dims: Sequence[int],
    ) -> None:
        super().__init__()
        self.shapes = dict(shapes)
        sizes = {name: math.prod(shape) for name, shape in shapes.items()}
        self.net: MultiHeadMLP | None = None
        self.constants = nn.ParameterDict()
        if condition_dim is not None:
            self.net = MultiHeadMLP(condition_dim, layer_dims, sizes)
            return
        for name, shape in shapes.items():
            self.constants[name] = nn.Parameter(torch.randn(1, *shape) / math.sqrt(sizes[name]))

    def forward(self, condition: Tensor) -> Params:
        """Map conditions ``(*B, D)`` to ``(*B, *shape)`` for each parameter; D is ignored if it is not needed."""
        batch = condition.shape[:-1]
        if self.net is not None:
            flat = self.net(condition)
            return {name: flat[name].reshape(*batch, *s) for name, s in self.shapes.items()}
        return {name: self.constants[name].expand(*batch, *s) for name, s in self.shapes.items()}


class Latent(nn.Module, ABC):
    """Family of a VAE's posterior and prior: parameters, samples, KL divergence.

    Attributes:
        size: width of a sample as the decoder receives it.
        posterior_sizes: width of each of the encoder's outputs.
    """

    size: int
    posterior_sizes: dict[str, int]

    @abstractmethod
    def sample_posterior(self, posterior: Params, generator: torch.Generator | None) -> Tensor:
        """Sample the posterior: ``(*B, size)``, differentiable."""

    @abstractmethod
    def sample_prior(self, condition: Tensor, generator: torch.Generator | None) -> Tensor:
        """Sample the prior: ``(*B, size)`` for conditions ``(*B, D)``."""

    @abstractmethod
    def kl(self, posterior: Params, z: Tensor, condition: Tensor) -> Tensor:
        """Return the KL divergence ``(*B,)`` of the posterior from the prior, or an estimate from the samples ``z``."""


class GaussianLatent(Latent):
    """Diagonal Gaussian posterior, standard normal prior.

    Args:
        latent_dim: number of dimensions.
        clip: samples of the prior are clamped to +- this.
    """

    def __init__(self, latent_dim: int, clip: float | None = None) -> None:
        super().__init__()
        self.size = latent_dim
        self.clip = clip
        self.posterior_sizes = {"mean": latent_dim, "logvar": latent_dim}

    def sample_posterior(self, posterior: Params, generator: torch.Generator | None) -> Tensor:
        """Sample by the reparameterization trick, with log std clamped to [-4, 15]."""
        return _reparameterize(posterior["mean"], posterior["logvar"], generator)

    def sample_prior(self, condition: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw from the prior."""
        return self._clipped(self._draw(condition, generator))

    def kl(self, posterior: Params, z: Tensor, condition: Tensor) -> Tensor:
        """Return the KL divergence in closed form."""
        return gaussian_kl_to_standard(posterior["mean"], posterior["logvar"])

    def _draw(self, condition: Tensor, generator: torch.Generator | None) -> Tensor:
        shape = (*condition.shape[:-1], self.size)
        return torch.randn(
            shape, generator=generator, device=condition.device, dtype=condition.dtype
        )

    def _clipped(self, z: Tensor) -> Tensor:
        return z if self.clip is None else z.clamp(-self.clip, self.clip)


class LearnedGaussianLatent(GaussianLatent):
    """Diagonal Gaussian posterior and learned diagonal Gaussian prior.

    Args:
        latent_dim: number of dimensions.
        condition_dim: size of the condition; None for a prior that does not depend on it.
        layer_dims: widths of the hidden layers of the conditioned prior.
        clip: samples of the prior are clamped to +- this.
    """

    def __init__(
        self,
        latent_dim: int,
        condition_dim: int | None,
        layer_dims: Sequence[int],
        clip: float | None = None,
    ) -> None:
        super().__init__(latent_dim, clip)
        shapes = {"mean": (1, latent_dim), "logvar": (1, latent_dim)}
        self.prior = PriorParams(shapes, condition_dim, layer_dims)

    def kl(self, posterior: Params, z: Tensor, condition: Tensor) -> Tensor:
        """Return the KL divergence in closed form."""
        mean, logvar = self._prior(condition)
        return gaussian_kl(posterior["mean"], posterior["logvar"], mean, logvar)

    def _draw(self, condition: Tensor, generator: torch.Generator | None) -> Tensor:
        return _reparameterize(*self._prior(condition), generator)

    def _prior(self, condition: Tensor) -> tuple[Tensor, Tensor]:
        params = self.prior(condition)
        return params["mean"].squeeze(-2), params["logvar"].squeeze(-2)


class GMMLatent(GaussianLatent):
    """Diagonal Gaussian posterior, learned mixture of Gaussians as prior.

    Args:
        latent_dim: number of dimensions.
        num_modes: M, number of modes.
        learn_weights: learn the modes' weights; false: they are equal.
        condition_dim: size of the condition; None for a prior that does not depend on it.
        layer_dims: widths of the hidden layers of the conditioned prior.
        clip: samples of the prior are clamped to +- this.
    """

    def __init__(
        self,
        latent_dim: int,
        num_modes: int,
        learn_weights: bool,
        condition_dim: int | None,
        layer_dims: Sequence[int],
        clip: float | None = None,
    ) -> None:
        super().__init__(latent_dim, clip)
        self.num_modes = num_modes
        shapes: dict[str, tuple[int, ...]] = {
            "mean": (num_modes, latent_dim),
            "logvar": (num_modes, latent_dim),
        }
        if learn_weights:
            shapes["weight"] = (num_modes,)
        self.prior = PriorParams(shapes, condition_dim, layer_dims)

    def kl(self, posterior: Params, z: Tensor, condition: Tensor) -> Tensor:
        """Estimate log q(z) - log p(z) with the posterior's sample; log variances are clamped to [-8, 30]."""
        params = self.prior(condition)
        var = posterior["logvar"].clamp(*_LOGVAR_LIMITS).exp()
        prior_vars = params["logvar"].clamp(*_LOGVAR_LIMITS).exp()
        per_mode = gaussian_log_prob(z.unsqueeze(-2), params["mean"], prior_vars)
        log_prior = torch.logsumexp(per_mode + self._log_weights(params), dim=-1)
        return gaussian_log_prob(z, posterior["mean"], var) - log_prior

    def _draw(self, condition: Tensor, generator: torch.Generator | None) -> Tensor:
        params = self.prior(condition)
        mode = draw_class(self._log_weights(params), generator)
        mean, logvar = pick_class(params["mean"], mode), pick_class(params["logvar"], mode)
        return _reparameterize(mean, logvar, generator)

    def _log_weights(self, params: Params) -> Tensor:
        """Return the logarithms ``(*B, M)`` of the weights."""
        if "weight" in params:
            return params["weight"].log_softmax(-1)
        return torch.full_like(params["mean"][..., 0], -math.log(self.num_modes))


class CategoricalLatent(Latent):
    """Independent categorical variables, relaxed by Gumbel-softmax in the posterior.

    The prior is uniform, or learned. Samples are concatenated one-hot vectors.

    Args:
        latent_dim: L, number of variables.
        num_classes: C, number of classes of each variable.
        learn: learn the prior; false: it is uniform.
        condition_dim: size of the condition; None for a prior that does not depend on it.
        layer_dims: widths of the hidden layers of the conditioned prior.
        hard: make the posterior's samples one-hot, with the gradient of the relaxed ones.
    """

    def __init__(
        self,
        latent_dim: int,
        num_classes: int,
        learn: bool,
        condition_dim: int | None,
        layer_dims: Sequence[int],
        hard: bool = False,
    ) -> None:
        super().__init__()
        self.shape = (latent_dim, num_classes)
        self.size = latent_dim * num_classes
        self.posterior_sizes = {"logit": self.size}
        self.hard = hard
        self.temperature = 1.0
        self.prior = (
            PriorParams({"logit": self.shape}, condition_dim, layer_dims) if learn else None
        )

    def sample_posterior(self, posterior: Params, generator: torch.Generator | None) -> Tensor:
        """Sample by Gumbel-softmax at the current temperature."""
        logits = _split(posterior["logit"], self.shape)
        gumbel = -torch.empty_like(logits).exponential_(generator=generator).log()
        soft = ((logits + gumbel) / self.temperature).softmax(-1)
        if not self.hard:
            return soft.flatten(-2)
        straight_through = _one_hot(soft.argmax(-1), soft) - soft.detach() + soft
        return straight_through.flatten(-2)

    def sample_prior(self, condition: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw a class for each variable."""
        logits = self._prior_logits(condition)
        return _one_hot(draw_class(logits, generator), logits).flatten(-2)

    def kl(self, posterior: Params, z: Tensor, condition: Tensor) -> Tensor:
        """Return the KL divergence in closed form, summed over the variables."""
        logits = _split(posterior["logit"], self.shape)
        return categorical_kl(logits, self._prior_logits(condition)).sum(-1)

    def _prior_logits(self, condition: Tensor) -> Tensor:
        if self.prior is None:
            return condition.new_zeros(*condition.shape[:-1], *self.shape)
        logits: Tensor = self.prior(condition)["logit"]
        return logits


def _split(x: Tensor, shape: tuple[int, int]) -> Tensor:
    return x.reshape(*x.shape[:-1], *shape)


def _one_hot(classes: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).scatter_(-1, classes.unsqueeze(-1), 1.0)


def _reparameterize(mean: Tensor, logvar: Tensor, generator: torch.Generator | None) -> Tensor:
    std = (0.5 * logvar).clamp(*_LOGSTD_LIMITS).exp()
    noise = torch.empty_like(std).normal_(generator=generator)
    return noise * std + mean
