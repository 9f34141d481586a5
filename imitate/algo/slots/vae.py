"""Variational autoencoder of observations, as an auxiliary loss.

Kingma, Welling, "Auto-Encoding Variational Bayes", ICLR 2014 (arXiv:1312.6114), with the weight beta of Higgins et al.,
"beta-VAE", ICLR 2017. With features phi, posterior q(z | phi(o)) = N(mean, std) and decoders d_k:

    loss    mean over keys of (d_k(z) - o_k)^2 + beta KL(q(z | phi(o)) || N(0, 1)), z ~ q           -> VAEAuxiliary.loss
    beta    log beta <- log beta + rate (KL / Z - target), Z latent dimensions, with a target     -> VAEAuxiliary.follow

The automatic beta keeps the divergence per dimension near a target (as in the library ALF, ``target_kld_per_dim``):
beta grows while the divergence is above the target.

Departure: errors are means over the values of an observation instead of sums, so that beta does not depend on their
number.
"""

import math

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from imitate.algo.slots.auxiliary import (
    Auxiliary,
    AuxiliaryContext,
    Batch,
    SharingAuxiliaryConfig,
    module_of,
    newest_frame,
    register,
)
from imitate.config import Section
from imitate.models.mlp import MultiHeadMLP
from imitate.models.reconstruction import ObservationDecoder, joined_errors
from imitate.models.vae import GaussianLatent


class VAEAuxiliaryConfig(SharingAuxiliaryConfig):
    """Options of an auxiliary of type ``vae``."""

    model_config = {**Section.model_config}

    observations: tuple[str, ...] | None = Field(
        None,
        description="observations that are reconstructed; null: all images, or all observations if none is an image",
    )
    latent_dim: int = Field(32, ge=1, description="Z: size of the latent")
    layer_dims: tuple[PositiveInt, ...] = Field(
        (256,), description="widths of the hidden layers of the decoder"
    )
    beta: float = Field(
        1e-3,
        gt=0,
        description="beta: weight of the KL divergence; the initial weight if target_kld_per_dim is set",
    )
    target_kld_per_dim: float | None = Field(
        None,
        gt=0,
        description="KL divergence per latent dimension, in nats, to which beta is tuned; null: beta is fixed",
    )
    beta_rate: float = Field(
        1e-3, gt=0, description="step size of the logarithm of beta per update"
    )


@register("vae", VAEAuxiliaryConfig)
class VAEAuxiliary(Auxiliary):
    """Posterior and decoder of a VAE on the features of an encoder."""

    log_beta: Tensor
    divergence: Tensor

    def __init__(self, config: VAEAuxiliaryConfig, context: AuxiliaryContext) -> None:
        super().__init__(config, context)
        self.features, self.frames = self.features_of(context), context.frames
        self.latent = GaussianLatent(config.latent_dim)
        self.posterior = MultiHeadMLP(self.features.output_dim, (), self.latent.posterior_sizes)
        shapes = context.chosen_shapes(config.observations)
        self.decoder = ObservationDecoder(config.latent_dim, shapes, config.layer_dims)
        self.register_buffer("log_beta", torch.tensor(math.log(config.beta)))
        self.register_buffer("divergence", torch.zeros(()), persistent=False)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the error of the reconstruction plus the weighted divergence."""
        x = self.features(batch["obs"], batch.get("goal_obs")).float()
        posterior = self.posterior(x)
        z = self.latent.sample_posterior(posterior, None)
        errors = self.decoder.squared_errors(z, newest_frame(batch["obs"], self.frames))
        error, kl = joined_errors(errors).mean(), self.latent.kl(posterior, z, x).mean()
        self.divergence.copy_(kl.detach())
        beta = self.log_beta.exp()
        loss = error + beta * kl
        info = {"Loss": loss, "Reconstruction_Loss": error, "KL_Loss": kl, "Beta": beta}
        return loss, info

    @torch.no_grad()
    def follow(self, batch: Batch) -> None:
        """Adapt beta to the divergence of the latest loss."""
        target = self.config.target_kld_per_dim
        if target is not None:
            excess = self.divergence / self.config.latent_dim - target
            self.log_beta += self.config.beta_rate * excess
            self.followed = [module_of(self.log_beta)]
