"""Conditional variational autoencoder over actions, or over several vectors such as those of a subgoal.

Kingma & Welling, "Auto-Encoding Variational Bayes", ICLR 2014 (arXiv:1312.6114); conditional form:
Sohn, Lee & Yan, "Learning Structured Output Representation using Deep Conditional Generative Models",
NeurIPS 2015; Gumbel-softmax: Jang, Gu & Poole, ICLR 2017 (arXiv:1611.01144).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import Self

from imitate.errors import ConfigError
from imitate.models.latents import (
    CategoricalLatent,
    GaussianLatent,
    GMMLatent,
    Latent,
    LearnedGaussianLatent,
    Params,
)
from imitate.models.mlp import MultiHeadMLP


class VAEOutput(NamedTuple):
    """Output of one pass: (B, A) ``reconstruction``, (B,) ``kl`` and ``reconstruction_loss``, and the latent."""

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
        output_dims: size of each vector that is reconstructed, if it is not an action; such vectors are not squashed,
            and are returned by :meth:`decode_parts`.
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
        """Build the VAE of section ``algo.vae``; raise ConfigError for contradicting settings."""
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
        """Encode, sample, decode; return the terms of the evidence lower bound, unreduced over the batch."""
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
        """Set the temperature of the Gumbel-softmax. Raises TypeError for other latents."""
        if not isinstance(self.latent, CategoricalLatent):
            raise TypeError(f"{type(self.latent).__name__} has no temperature")
        self.latent.temperature = temperature


def make_latent(condition_dim: int, config: Any) -> Latent:
    """Build the latent of section ``algo.vae``."""
    prior, clip = config.prior, config.latent_clip
    if prior.use_gmm and prior.use_categorical:
        raise ConfigError("algo.vae.prior: use_gmm and use_categorical exclude each other")
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
