"""Normalization layers of convolutional trunks, chosen by name.

BatchNorm's running statistics do not match a moving average of weights (Diffusion Policy, Chi et al. 2023,
arXiv:2303.04137, replaces it by GroupNorm for that reason), and small batches make it noisy.
"""

from __future__ import annotations

from torch import nn
from typing_extensions import Self

from imitate.errors import ConfigError, nearest

CHANNELS_PER_GROUP = 16


class FrozenBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm whose loaded statistics and affine map never change."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        """Ignore the mode: the layer stays in evaluation mode."""
        return super().train(False)


class ChannelGroupNorm(nn.GroupNorm):
    """GroupNorm with groups of 16 channels."""

    def __init__(self, channels: int) -> None:
        super().__init__(max(1, channels // CHANNELS_PER_GROUP), channels)


NORMS: dict[str, type[nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "frozen_batch": FrozenBatchNorm2d,
    "group": ChannelGroupNorm,
    "none": nn.Identity,
}


def norm_class(norm: str | None, default: str, pretrained: bool) -> type[nn.Module]:
    """Return the normalization class of that name; its constructor takes the number of channels.

    Args:
        norm: name in :data:`NORMS`; None: ``default``, but 'frozen_batch' if that is 'group' and the weights were
            trained with BatchNorm, because another normalization would spoil their features.
        default: default normalization of the algorithm.
        pretrained: true if pretrained weights are loaded.
    """
    if norm is None:
        norm = "frozen_batch" if default == "group" and pretrained else default
    if norm not in NORMS:
        raise ConfigError(f"backbone_kwargs.norm: unknown '{norm}'; {nearest(norm, NORMS)}")
    if norm == "none" and pretrained:
        raise ConfigError(
            "backbone_kwargs.norm is 'none', but pretrained weights were trained with BatchNorm; set norm to null"
        )
    return NORMS[norm]
