"""Vector-quantized autoencoder of observations, as an auxiliary loss.

Van den Oord, Vinyals, Kavukcuoglu, "Neural Discrete Representation Learning" (VQ-VAE), NeurIPS 2017 (arXiv:1711.00937).
With features phi, z = W phi(o), its nearest code p (in layers, each of which quantizes the remaining error of the
previous layer) and decoders d_k:

    loss    mean over keys of (d_k(z + sg(p - z)) - o_k)^2 + weight |z - sg(p)|^2                    -> VQAuxiliary.loss
    codes   moving averages of the vectors assigned to them, appendix A.1 of the paper       -> models.vq.ResidualVQ

The straight-through estimate z + sg(p - z) gives the encoder the gradient of the decoder's input.

Departures: several layers of codes; errors are means over the values of an observation instead of sums, so that
``commitment_weight`` does not depend on their number.
"""

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from imitate.algo.slots.auxiliary import (
    Auxiliary,
    AuxiliaryContext,
    Batch,
    SharingAuxiliaryConfig,
    newest_frame,
    register,
)
from imitate.config import Section
from imitate.models.reconstruction import ObservationDecoder, joined_errors
from imitate.models.vq import ResidualVQ


class VQAuxiliaryConfig(SharingAuxiliaryConfig):
    """Options of an auxiliary of type ``vq``."""

    model_config = {**Section.model_config}

    observations: tuple[str, ...] | None = Field(
        None,
        description="observations that are reconstructed; null: all images, or all observations if none is an image",
    )
    latent_dim: int = Field(32, ge=1, description="size of a code")
    num_codes: int = Field(64, ge=2, description="number of codes of each layer")
    num_layers: int = Field(2, ge=1, description="number of layers of codes")
    decay: float = Field(
        0.95, gt=0, lt=1, description="decay of the moving averages that define the codes"
    )
    commitment_weight: float = Field(
        0.25, ge=0, description="weight of the distance of latents from their codes"
    )
    layer_dims: tuple[PositiveInt, ...] = Field(
        (256,), description="widths of the hidden layers of the decoder"
    )


@register("vq", VQAuxiliaryConfig)
class VQAuxiliary(Auxiliary):
    """Vector quantizer and decoder on the features of an encoder."""

    def __init__(self, config: VQAuxiliaryConfig, context: AuxiliaryContext) -> None:
        super().__init__(config, context)
        self.features, self.frames = self.features_of(context), context.frames
        self.to_latent = nn.Linear(self.features.output_dim, config.latent_dim)
        self.quantizer = ResidualVQ(
            config.latent_dim, config.num_codes, config.num_layers, decay=config.decay
        )
        shapes = context.chosen_shapes(config.observations)
        self.decoder = ObservationDecoder(config.latent_dim, shapes, config.layer_dims)
        self.followed = [self.quantizer]

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the error of the reconstruction plus the commitment; in training the codes are updated too."""
        z = self.to_latent(self.features(batch["obs"], batch.get("goal_obs")).float())
        quantized = self.quantizer(z, learn=torch.is_grad_enabled())
        shown = newest_frame(batch["obs"], self.frames)
        error = joined_errors(self.decoder.squared_errors(quantized.vectors, shown)).mean()
        commitment = quantized.commitment.mean()
        loss = error + self.config.commitment_weight * commitment
        return loss, {"Loss": loss, "Reconstruction_Loss": error, "Commitment_Loss": commitment}
