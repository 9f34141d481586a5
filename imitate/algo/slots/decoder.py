"""Decoder: an auxiliary loss for reconstructing observations from their features.

Regularized autoencoders beside a policy: Yarats, Zhang, Kostrikov, Amos, Pineau, Fergus, "Improving Sample Efficiency
in Model-Free Reinforcement Learning from Images", AAAI 2021 (arXiv:1910.01741). With features phi and decoders d_k:

    loss    mean over keys k, and over the numbers of an observation, of (d_k(phi(o)) - o_k)^2 -> DecoderAuxiliary.loss

Departures: the latent is not penalized, and images are not reduced to 5 bits; the weight decay of the decoder is the
optimizer's ``regularization.L2``.
"""

from pydantic import Field, PositiveInt
from torch import Tensor

from imitate.algo.slots.auxiliary import (
    Auxiliary,
    AuxiliaryContext,
    Batch,
    SharingAuxiliaryConfig,
    newest_frame,
    register,
)
from imitate.config import Section
from imitate.functional.losses import masked_mean
from imitate.models.reconstruction import ObservationDecoder, joined_errors


class DecoderConfig(SharingAuxiliaryConfig):
    """Options of an auxiliary of type ``decoder``."""

    model_config = {**Section.model_config}

    observations: tuple[str, ...] | None = Field(
        None,
        description="observations that are reconstructed; null: all images, or all observations if none is an image",
    )
    layer_dims: tuple[PositiveInt, ...] = Field(
        (256,), description="widths of the hidden layers of the decoder"
    )


@register("decoder", DecoderConfig)
class DecoderAuxiliary(Auxiliary):
    """Network that reconstructs observations from their features."""

    def __init__(self, config: DecoderConfig, context: AuxiliaryContext) -> None:
        super().__init__(config, context)
        self.features = self.features_of(context)
        shapes = context.chosen_shapes(config.observations)
        self.decoder = ObservationDecoder(self.features.output_dim, shapes, config.layer_dims)
        self.frames = context.frames

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the reconstruction error of the newest frame's observations."""
        x = self.features(batch["obs"], batch.get("goal_obs"))
        shown = newest_frame(batch["obs"], self.frames)
        errors = self.decoder.squared_errors(x.float(), shown)
        loss = joined_errors(errors).mean()
        return loss, {"Loss": loss, **{f"{k}_Loss": masked_mean(e) for k, e in errors.items()}}
