"""Conditional variational autoencoder and its latent variables.

Kingma & Welling, "Auto-Encoding Variational Bayes", ICLR 2014 (arXiv:1312.6114); conditional form:
Sohn, Lee & Yan, "Learning Structured Output Representation using Deep Conditional Generative Models",
NeurIPS 2015; Gumbel-softmax: Jang, Gu & Poole, ICLR 2017 (arXiv:1611.01144).

Each class of latent variables is a posterior family together with its prior.

Departure from robomimic: the uniform categorical prior is sampled randomly even for one latent dimension. robomimic
assigns the classes in turn along the batch, so that the policies of a batch would not be independent.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import Self

from imitate.errors import ConfigError
from imitate.functional.losses import (
    categorical_kl,
    gaussian_kl,
    gaussian_kl_to_standard,
    gaussian_log_prob,
)
from imitate.functional.sampling import draw_class, pick_class
from imitate.models.mlp import MultiHeadMLP

Params = dict[str, Tensor]

_LOGSTD_LIMITS = (-4.0, 15.0)  # limits of the log std for samples of the posterior
# limits of log variances in a KL divergence that is estimated from samples
_LOGVAR_LIMITS = (-8.0, 30.0)


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
        """Map conditions ``(*B, D)`` to ``(*B, *shape)`` for each parameter; constants ignore the conditions."""
        batch = condition.shape[:-1]
        if self.net is not None:
            flat = self.net(condition)
            return {name: flat[name].reshape(*batch, *s) for name, s in self.shapes.items()}
        return {name: self.constants[name].expand(*batch, *s) for name, s in self.shapes.items()}


class Latent(nn.Module, ABC):
    """Latent variables of a VAE: a family of posteriors with its prior, samples of both, KL divergence.

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
        clip: largest magnitude of samples of the prior, which are clamped; None for no limit.
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
        """Draw from the prior and clamp the sample to +- ``clip``, if it is set."""
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
        clip: largest magnitude of samples of the prior, which are clamped; None for no limit.
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
        learn_weights: learn the modes' weights; if false, they are equal.
        condition_dim: size of the condition; None for a prior that does not depend on it.
        layer_dims: widths of the hidden layers of the conditioned prior.
        clip: largest magnitude of samples of the prior, which are clamped; None for no limit.
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
        learn: learn the prior; if false, it is uniform.
        condition_dim: size of the condition; None for a prior that does not depend on it.
        layer_dims: widths of the hidden layers of the conditioned prior.
        hard: make the posterior's samples one-hot, with the gradient of the relaxed samples.
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


class VAEOutput(NamedTuple):
    """Output of the VAE for B actions: (B, A) ``reconstruction``, (B,) ``kl``, ``reconstruction_loss``, and latent."""

    reconstruction: Tensor
    kl: Tensor
    reconstruction_loss: Tensor
    latent: Tensor
    posterior: Params


class VAE(nn.Module):
    """Encoder q(z | a, s), decoder a(z, s), prior p(z) or p(z | s).

    Args:
        condition_dim: number of features of the condition s.
        action_dim: size of the action a, which is in [-1, 1].
        latent: posterior family and prior.
        encoder_layer_dims: widths of the hidden layers of the encoder.
        decoder_layer_dims: widths of the hidden layers of the decoder.
        decoder_is_conditioned: give s to the decoder (robomimic always does).
        reconstruction_sum_across_elements: sum the squared error over action dimensions instead of averaging it.
        output_dims: size of each vector that is reconstructed in place of an action; these vectors are not squashed by
            a tanh, and are returned by :meth:`decode_parts`.
    """

    def __init__(
        self,
        condition_dim: int,
        action_dim: int,
        latent: Latent,
        encoder_layer_dims: Sequence[int] = (300, 400),
        decoder_layer_dims: Sequence[int] = (300, 400),
        *,
        decoder_is_conditioned: bool = True,
        reconstruction_sum_across_elements: bool = False,
        output_dims: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self.latent = latent
        self.encoder = MultiHeadMLP(
            action_dim + condition_dim, encoder_layer_dims, latent.posterior_sizes
        )
        self.decoder = MultiHeadMLP(
            latent.size + (condition_dim if decoder_is_conditioned else 0),
            decoder_layer_dims,
            output_dims or {"action": action_dim},
        )
        self.decoder_is_conditioned = decoder_is_conditioned
        self.sums_reconstruction = reconstruction_sum_across_elements

    @classmethod
    def from_config(
        cls,
        condition_dim: int,
        action_dim: int,
        config: Any,
        output_dims: Mapping[str, int] | None = None,
    ) -> Self:
        """Build the VAE that the section ``algo.vae`` describes. Raises ConfigError for contradicting settings."""
        if not (config.decoder.is_conditioned or config.prior.is_conditioned):
            raise ConfigError(
                "algo.vae: decoder.is_conditioned and prior.is_conditioned are both false, so that "
                "samples would not depend on observations; set one of them to true"
            )
        return cls(
            condition_dim,
            action_dim,
            make_latent(condition_dim, config),
            config.encoder_layer_dims,
            config.decoder_layer_dims,
            decoder_is_conditioned=config.decoder.is_conditioned,
            reconstruction_sum_across_elements=config.decoder.reconstruction_sum_across_elements,
            output_dims=output_dims,
        )

    def encode(self, actions: Tensor, condition: Tensor) -> Params:
        """Compute the parameters of the posterior: ``mean`` and ``logvar`` (B, Z), or ``logit`` (B, L C)."""
        posterior: Params = self.encoder(torch.cat([actions, condition], dim=-1))
        return posterior

    def decode(self, z: Tensor, condition: Tensor) -> Tensor:
        """Decode latents (B, Z) to actions (B, A), squashed by tanh."""
        return self.decode_parts(z, condition)["action"].tanh()

    def decode_parts(self, z: Tensor, condition: Tensor) -> Params:
        """Decode latents (*B, Z) to the vectors (*B, D) of the decoder, by name."""
        inputs = torch.cat([z, condition], dim=-1) if self.decoder_is_conditioned else z
        parts: Params = self.decoder(inputs)
        return parts

    def sample_prior(self, condition: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Sample latents (B, Z) for conditions (B, D)."""
        return self.latent.sample_prior(condition, generator)

    def act(self, condition: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return actions (B, A) from latents of the prior."""
        return self.decode(self.sample_prior(condition, generator), condition)

    def forward(
        self, actions: Tensor, condition: Tensor, generator: torch.Generator | None = None
    ) -> VAEOutput:
        """Encode actions, sample latents and decode them; return the terms of the evidence lower bound, per sample."""
        posterior = self.encode(actions, condition)
        z = self.latent.sample_posterior(posterior, generator)
        reconstruction = self.decode(z, condition)
        error = (reconstruction - actions).square()
        return VAEOutput(
            reconstruction=reconstruction,
            kl=self.latent.kl(posterior, z, condition),
            reconstruction_loss=error.sum(-1) if self.sums_reconstruction else error.mean(-1),
            latent=z,
            posterior=posterior,
        )

    def set_gumbel_temperature(self, temperature: float) -> None:
        """Set the temperature of the Gumbel-softmax. Raises TypeError if latents are not categorical."""
        if not isinstance(self.latent, CategoricalLatent):
            raise TypeError(
                f"{type(self.latent).__name__} has no temperature; only categorical latents have one"
            )
        self.latent.temperature = temperature


def make_latent(condition_dim: int, config: Any) -> Latent:
    """Build the latent variables that the section ``algo.vae`` describes."""
    prior, clip = config.prior, config.latent_clip
    if prior.use_gmm and prior.use_categorical:
        raise ConfigError(
            "algo.vae.prior: use_gmm and use_categorical exclude each other: set one of them to false"
        )
    for key in ("use_gmm", "is_conditioned"):
        if prior[key] and not prior.learn:
            raise ConfigError(
                f"algo.vae.prior.{key} is true, but learn is false: set learn to true"
            )
    prior_condition = condition_dim if prior.is_conditioned else None
    layer_dims = config.prior_layer_dims
    if prior.use_categorical:
        return CategoricalLatent(
            config.latent_dim,
            prior.categorical_dim,
            prior.learn,
            prior_condition,
            layer_dims,
            hard=prior.categorical_gumbel_softmax_hard,
        )
    if prior.use_gmm:
        return GMMLatent(
            config.latent_dim,
            prior.gmm_num_modes,
            prior.gmm_learn_weights,
            prior_condition,
            layer_dims,
            clip,
        )
    if prior.learn:
        return LearnedGaussianLatent(config.latent_dim, prior_condition, layer_dims, clip)
    return GaussianLatent(config.latent_dim, clip)
