"""Encoder of images whose features belong to objects: each slot attends to a part of the image.

Burgess, Matthey, Watters, Kabra, Higgins, Botvinick, Lerchner, "MONet: Unsupervised Scene Decomposition and
Representation", 2019 (arXiv:1901.11390). For slots k = 1..G of an image x, with s_1 = 1 and attention a_k in (0, 1):

    masks     m_k = s_k a_k(x, s_k), s_k+1 = s_k (1 - a_k), m_G = s_G                            -> SlotCore.log_masks
    slots     q(z_k | x, m_k) = N(mean, exp(log variance)), z the features                -> SlotCore.posterior, drawn
    decoder   x_k, log m'_k of each z_k, from z_k at every place and the place's coordinates     -> SlotDecoder
    loss      -log sum_k m_k N(x; x_k, sigma_k) + beta sum_k KL(q || N(0, 1)) + gamma KL(m || m') -> slot_losses

The core gives the means of all slots. The core is trained by a policy's loss, and by the loss of the auxiliary
``monet`` (:mod:`imitate.algo.slots.monet`). sigma_1, which differs from the sigma of the other slots, decides what the
first slot represents.

Departures: smaller networks for small images; the encoder sees the mask m_k instead of log m_k, which has no lower
limit.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from imitate.errors import ConfigError
from imitate.models.layout import Shape


def _block(before: int, after: int) -> nn.Sequential:
    conv = nn.Conv2d(before, after, 3, padding=1, bias=False)
    return nn.Sequential(conv, nn.InstanceNorm2d(after, affine=True), nn.ReLU())


class MaskNet(nn.Module):
    """U-Net from (B, C, H, W) to logits (B, 2, H, W); each level halves height and width, the lowest is a vector."""

    def __init__(self, shape: Shape, channels: int, levels: int = 3) -> None:
        super().__init__()
        widths = [shape[0], *[channels] * levels]
        self.down = nn.ModuleList(map(_block, widths[:-1], widths[1:]))
        low = [size >> (levels - 1) for size in shape[1:]]
        self.vector = nn.Sequential(
            *(nn.Flatten(), nn.Linear(channels * low[0] * low[1], 64), nn.ReLU()),
            *(nn.Linear(64, channels * low[0] * low[1]), nn.ReLU()),
            nn.Unflatten(1, (channels, *low)),
        )
        self.up = nn.ModuleList(_block(2 * channels, channels) for _ in range(levels))
        self.last = nn.Conv2d(channels, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return unnormalized logits (B, 2, H, W): of the slot's attention, and of the remaining scope."""
        kept = []
        for number, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if number else x)
            kept.append(x)
        x = self.vector(x)
        for block, same in zip(self.up, reversed(kept), strict=True):
            x = F.interpolate(x, size=same.shape[-2:]) if x.shape != same.shape else x
            x = block(torch.cat([x, same], 1))
        logits: Tensor = self.last(x)
        return logits


class SlotCore(nn.Module):
    """Core that divides an image among slots by attention and encodes each slot.

    Args:
        input_shape: (C, H, W), at least 8 x 8.
        slots: G, number of objects, with the background.
        slot_dim: Z, features of a slot.
        channels: channels of the convolutions.
    """

    def __init__(
        self, input_shape: Shape, slots: int = 5, slot_dim: int = 16, channels: int = 16
    ) -> None:
        super().__init__()
        if len(input_shape) != 3 or min(input_shape[1:]) < 8 or slots < 2:
            raise ConfigError(
                f"SlotCore: {slots} slots of inputs {tuple(input_shape)}; expected images (C, H, W) of at least 8 x 8 "
                "pixels and at least 2 slots"
            )
        shape = self.input_shape = (input_shape[0] + 1, *input_shape[1:])
        self.slots, self.slot_dim, self.output_shape = slots, slot_dim, (slots * slot_dim,)
        self.attention = MaskNet(shape, channels)
        half = [-(-size // 4) for size in shape[1:]]
        self.encoder = nn.Sequential(
            *(nn.Conv2d(shape[0], channels, 3, 2, 1), nn.ReLU()),
            *(nn.Conv2d(channels, channels, 3, 2, 1), nn.ReLU(), nn.Flatten()),
            nn.Linear(channels * half[0] * half[1], 2 * slot_dim),
        )

    def log_masks(self, x: Tensor) -> Tensor:
        """Return log m (B, G, H, W) of images (B, C, H, W); the masks of a pixel sum to 1."""
        scope, found = torch.zeros_like(x[:, :1]), []
        for _ in range(self.slots - 1):
            log_share = self.attention(torch.cat([x, scope.exp()], 1)).log_softmax(1)
            found.append(scope + log_share[:, :1])
            scope = scope + log_share[:, 1:]
        return torch.cat([*found, scope], 1)

    def posterior(self, x: Tensor, log_masks: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log variances (B, G, Z) of the slots."""
        seen = x.unsqueeze(1).expand(-1, self.slots, -1, -1, -1)
        both = torch.cat([seen, log_masks.exp().unsqueeze(2)], 2)
        mean, log_var = self.encoder(both.flatten(0, 1)).chunk(2, -1)
        shape = (-1, self.slots, self.slot_dim)
        return mean.reshape(shape), log_var.reshape(shape)

    def forward(self, x: Tensor) -> Tensor:
        """Encode images (B, C, H, W) as the means (B, G Z) of their slots."""
        return self.posterior(x, self.log_masks(x))[0].flatten(1)


class SlotDecoder(nn.Module):
    """Decoder that broadcasts a slot to all pixels and adds their coordinates (spatial broadcast decoder)."""

    def __init__(self, core: SlotCore, channels: int = 32) -> None:
        super().__init__()
        channels_out, height, width = core.input_shape
        self.net = nn.Sequential(
            *(nn.Conv2d(core.slot_dim + 2, channels, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()),
            nn.Conv2d(channels, channels_out, 1),
        )
        rows, columns = torch.linspace(-1, 1, height), torch.linspace(-1, 1, width)
        places = torch.stack(torch.meshgrid(rows, columns, indexing="ij"))
        self.register_buffer("places", places, persistent=False)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return images (B, G, C, H, W) and log masks m' (B, G, H, W) of slots (B, G, Z)."""
        flat = z.flatten(0, 1)[..., None, None]
        places: Tensor = self.get_buffer("places")
        size = (*flat.shape[:2], *places.shape[1:])
        made = self.net(torch.cat([flat.expand(size), places.expand(len(flat), -1, -1, -1)], 1))
        made = made.reshape(*z.shape[:2], *made.shape[1:])
        return made[:, :, :-1], made[:, :, -1].log_softmax(1)


def drawn(mean: Tensor, log_var: Tensor) -> Tensor:
    """Draw slots from their posterior."""
    return mean + (0.5 * log_var).exp() * torch.randn_like(mean)


def slot_losses(
    x: Tensor,
    log_masks: Tensor,
    posterior: tuple[Tensor, Tensor],
    made: tuple[Tensor, Tensor],
    sigmas: tuple[float, float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the negative log-likelihood and the KL divergences of the slots and of the masks, (B,) each.

    Args:
        x: images (B, C, H, W).
        log_masks: (B, G, H, W).
        posterior: means and log variances (B, G, Z).
        made: decoded images (B, G, C, H, W) and log masks (B, G, H, W).
        sigmas: standard deviation of pixels in the first slot, and in all other slots.
    """
    mean, log_var = posterior
    sigma = x.new_tensor([sigmas[0], *[sigmas[1]] * (log_masks.shape[1] - 1)])[:, None, None]
    square = (x.unsqueeze(1) - made[0]).square().sum(2)
    constant = x.shape[1] * (sigma.log() + 0.5 * math.log(2.0 * math.pi))
    log_density = -0.5 * square / sigma.square() - constant
    error = -(log_masks + log_density).logsumexp(1).sum((1, 2))
    kl = 0.5 * (mean.square() + log_var.exp() - 1.0 - log_var).sum((1, 2))
    mask_kl = (log_masks.exp() * (log_masks - made[1])).sum((1, 2, 3))
    return error, kl, mask_kl
