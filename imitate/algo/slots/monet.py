"""MONet: an auxiliary loss that makes each slot of an image encoder represent one object.

Burgess et al., "MONet: Unsupervised Scene Decomposition and Representation", 2019 (arXiv:1901.11390); equations in
:mod:`imitate.models.monet`. The encoder of the images must have the core ``SlotCore``; this module adds the decoder
and the loss:

    loss    (-log likelihood + beta KL + gamma KL of masks) / number of values in an image   -> MONetAuxiliary.loss

Departure: the division, so that the weight of the loss does not depend on the size of the images.
"""

import torch
from pydantic import Field
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
from imitate.errors import ConfigError
from imitate.models.key_encoder import KeyEncoder
from imitate.models.monet import SlotCore, SlotDecoder, drawn, slot_losses


class MONetConfig(SharingAuxiliaryConfig):
    """Options of an auxiliary of type ``monet``."""

    model_config = {**Section.model_config}

    beta: float = Field(
        0.5, ge=0, description="beta: weight of the KL divergence of the slots from the prior"
    )
    gamma: float = Field(
        0.5,
        ge=0,
        description="gamma: weight of the KL divergence between the encoder's masks and the decoded masks",
    )
    sigmas: tuple[float, float] = Field(
        (0.09, 0.11),
        description="standard deviation of pixels in the first slot and in the other slots, for images with values "
        "from 0 to 1",
    )
    channels: int = Field(32, ge=1, description="number of channels of the decoder's layers")


@register("monet", MONetConfig)
class MONetAuxiliary(Auxiliary):
    """Decoders of the slots of all images whose encoder is a ``SlotCore``."""

    def __init__(self, config: MONetConfig, context: AuxiliaryContext) -> None:
        super().__init__(config, context)
        self.features, self.frames = self.features_of(context), context.frames
        self.keys = list(self._cores())
        if not self.keys:
            raise ConfigError(
                "algo.auxiliary: monet needs images whose encoder is a SlotCore without a randomizer: set "
                "observation.encoder.rgb.core_class to SlotCore and obs_randomizer_class to null"
            )
        self.decoders = nn.ModuleList(
            SlotDecoder(core, config.channels) for core in self._cores().values()
        )

    def _cores(self) -> dict[str, SlotCore]:
        """Return the core of each image, by its key."""
        found: dict[str, SlotCore] = {}
        for name, net in self.features.encoder.obs.nets.items():
            if isinstance(net, KeyEncoder) and isinstance(net.core, SlotCore):
                keys = name.replace("/", ".").split("+")
                found |= {key: net.core for key in keys if not net.randomizers}
        return found

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss over the newest frame's images."""
        shown, config = newest_frame(batch["obs"], self.frames), self.config
        parts = []
        for (key, core), decoder in zip(self._cores().items(), self.decoders, strict=True):
            x = shown[key].float()
            log_masks = core.log_masks(x)
            posterior = core.posterior(x, log_masks)
            made = decoder(drawn(*posterior))
            losses = slot_losses(x, log_masks, posterior, made, config.sigmas)
            parts.append(torch.stack([each.mean() for each in losses]) / x[0].numel())
        error, kl, mask_kl = torch.stack(parts).mean(0)
        loss = error + config.beta * kl + config.gamma * mask_kl
        info = {"Loss": loss, "Reconstruction_Loss": error, "KL_Loss": kl, "Mask_Loss": mask_kl}
        return loss, info
