"""ResNet trunks: everything before the pooling, with a choice of normalization; names of weights are torchvision's.

He et al., CVPR 2016 (arXiv:1512.03385). The stride of a bottleneck is in its 3x3 convolution, as in torchvision.
FiLM: Perez et al., AAAI 2018 (arXiv:1709.07871): after each block, channels are scaled and shifted by a linear map of
the instruction's embedding.

Departures from robomimic: images for pretrained trunks are normalized with ImageNet's mean and standard deviation, as
in their training; the colour weights of a pretrained first convolution are kept if coordinates are added; FiLM starts
as the identity; the normalization layers can be chosen.

The normalization layers are chosen by name. BatchNorm's running statistics do not match a moving average of weights
(Diffusion Policy, Chi et al. 2023, arXiv:2303.04137, replaces it by GroupNorm for that reason), and small batches make
it noisy.

`CoordConv2d`: Liu et al., NeurIPS 2018 (arXiv:1807.03247).
"""

import math
import warnings
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from imitate.errors import ConfigError, nearest
from imitate.functional.kernels import convolution_over_images
from imitate.models.layout import Shape
from imitate.models.pretrained import IMAGENET, InputImages, fill, pretrained_weights


class CoordConv2d(nn.Conv2d):
    """Convolution with two more input channels, the coordinates y and x in [0, 1)."""

    def __init__(self, in_channels: int, out_channels: int, **kwargs: Any) -> None:
        super().__init__(in_channels + 2, out_channels, **kwargs)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve images ``(B, C, H, W)`` and their coordinates."""
        return super().forward(with_coordinates(x))


def with_coordinates(x: Tensor) -> Tensor:
    """Add two channels to ``(B, C, H, W)``: row / H and column / W."""
    batch, _, height, width = x.shape
    rows = torch.arange(height, device=x.device, dtype=x.dtype) / height
    columns = torch.arange(width, device=x.device, dtype=x.dtype) / width
    grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"))
    return torch.cat([x, grid.expand(batch, -1, -1, -1)], dim=1)


CHANNELS_PER_GROUP = 16


class FrozenBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm whose loaded statistics and affine map never change."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        """Ignore ``mode``, because the layer always stays in evaluation mode."""
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
    """Return a normalization class by its name; the constructor takes the number of channels.

    Args:
        norm: name in :data:`NORMS`; None for ``default``, but 'frozen_batch' instead of 'group' for pretrained weights,
            because these were trained with BatchNorm and have useless features with another normalization.
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


class Convolution(nn.Conv2d):
    """``nn.Conv2d`` with a 3x3 or 1x1 kernel that is faster on a CPU for small images.

    The input is padded by zeros so that the result has ceil(H / stride) rows and ceil(W / stride) columns; there is no
    bias.
    """

    def __init__(
        self, in_channels: int, channels: int, stride: int = 1, *, window: int = 3
    ) -> None:
        super().__init__(in_channels, channels, window, stride, padding=window // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve ``(B, I, H, W)`` to ``(B, O, H', W')``."""
        stride, padding = self.stride, self.padding
        return convolution_over_images(x, self.weight, self.bias, stride, padding)  # type: ignore[arg-type]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion: ClassVar[int] = 1

    def __init__(self, in_channels: int, channels: int, stride: int, norm: type[nn.Module]) -> None:
        super().__init__()
        self.conv1 = Convolution(in_channels, channels, stride)
        self.bn1 = norm(channels)
        self.conv2 = Convolution(channels, channels)
        self.bn2 = norm(channels)
        self.downsample = _shortcut(in_channels, channels, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, C, H, W)`` to ``(B, channels, H / stride, W / stride)``."""
        shortcut = x if self.downsample is None else self.downsample(x)
        y = torch.relu_(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return torch.relu_(y.add_(shortcut))


class Bottleneck(nn.Module):
    """A 3x3 convolution on a quarter of the channels between two 1x1 convolutions, and a shortcut."""

    expansion: ClassVar[int] = 4

    def __init__(self, in_channels: int, channels: int, stride: int, norm: type[nn.Module]) -> None:
        super().__init__()
        out = channels * self.expansion
        self.conv1 = Convolution(in_channels, channels, window=1)
        self.bn1 = norm(channels)
        self.conv2 = Convolution(channels, channels, stride)
        self.bn2 = norm(channels)
        self.conv3 = Convolution(channels, out, window=1)
        self.bn3 = norm(out)
        self.downsample = _shortcut(in_channels, out, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, C, H, W)`` to ``(B, 4 channels, H / stride, W / stride)``."""
        shortcut = x if self.downsample is None else self.downsample(x)
        y = torch.relu_(self.bn1(self.conv1(x)))
        y = torch.relu_(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return torch.relu_(y.add_(shortcut))


def _shortcut(
    in_channels: int, channels: int, stride: int, norm: type[nn.Module]
) -> nn.Sequential | None:
    if stride == 1 and in_channels == channels:
        return None
    return nn.Sequential(Convolution(in_channels, channels, stride, window=1), norm(channels))


class FiLM(nn.Module):
    """``relu((1 + gamma) x + beta)`` with beta and gamma linear in a vector; initially the identity for x >= 0."""

    def __init__(self, vector_dim: int, channels: int) -> None:
        super().__init__()
        self.lang_proj = nn.Linear(vector_dim, 2 * channels)
        nn.init.zeros_(self.lang_proj.weight)
        nn.init.zeros_(self.lang_proj.bias)

    def forward(self, x: Tensor, vector: Tensor) -> Tensor:
        """Scale and shift ``(B, C, H, W)`` by vectors ``(B, D)``; beta is the first half of the linear map's output."""
        beta, gamma = self.lang_proj(vector)[:, :, None, None].chunk(2, dim=1)
        return torch.relu_(torch.addcmul(beta, x, 1 + gamma))


class ResNet(nn.Module):
    """Base class of ResNet trunks, whose output has 1/32 of the image's resolution.

    Args:
        input_channel: number of channels of the image; the first three are colours if there are three or more.
        pretrained: false, true for torchvision's ImageNet weights, or the path of a file (.pth, .pt, .safetensors) with
            torchvision's names. A first convolution with fewer than three channels is not loaded.
        pretrained_sha256: checksum that the file must have; None to skip the check.
        input_coord_conv: give pixel coordinates to the first convolution as further channels.
        freeze: do not train the pretrained weights, and do not update BatchNorm's statistics.
        lr_scale: factor on the learning rate of the trunk's weights.
        norm: see :func:`~imitate.models.resnet.norm_class`.
        imagenet_normalization: normalize colours in [0, 1] as for ImageNet; None to do so only if the weights are
            pretrained.
        image_size: side length, in pixels, of the square to which images are resized; None for no resizing.
        lang_emb_dim: size of the instruction's embedding, a key of robomimic; must equal the size of the observation,
            if given.
        language_dim: size of the instruction's embedding; None without instructions.
        default_norm: normalization that is used if ``norm`` is None.
        load_pretrained: load the pretrained weights; false if a checkpoint contains the weights.
    """

    block: ClassVar[type[BasicBlock | Bottleneck]]
    blocks: ClassVar[tuple[int, int, int, int]]
    torchvision_name: ClassVar[str]
    uses_language: ClassVar[bool] = False

    def __init__(
        self,
        input_channel: int = 3,
        pretrained: bool | str = False,
        pretrained_sha256: str | None = None,
        input_coord_conv: bool = False,
        freeze: bool = False,
        lr_scale: float = 1.0,
        norm: str | None = None,
        imagenet_normalization: bool | None = None,
        image_size: int | None = None,
        lang_emb_dim: int | None = None,
        language_dim: int | None = None,
        default_norm: str = "batch",
        load_pretrained: bool = True,
    ) -> None:
        super().__init__()
        if lr_scale <= 0:
            raise ConfigError(
                f"backbone_kwargs.lr_scale is {lr_scale}; expected more than 0; to keep the weights unchanged, set "
                "freeze to true"
            )
        if freeze and not pretrained and load_pretrained:
            warnings.warn(
                "backbone_kwargs.freeze is true without pretrained: unless experiment.ckpt_path provides weights, "
                "they stay random; set freeze to false or give pretrained",
                stacklevel=2,
            )
        self.lr_scale = lr_scale
        self.frozen = freeze
        layer = norm_class(norm, default_norm, bool(pretrained))
        if norm == "frozen_batch" and not pretrained and load_pretrained:
            warnings.warn(
                "backbone_kwargs.norm is 'frozen_batch' without pretrained: unless experiment.ckpt_path provides "
                "statistics, features are not normalized; set norm to 'group' or 'batch'",
                stacklevel=2,
            )
        first = CoordConv2d if input_coord_conv else nn.Conv2d
        self.conv1 = first(input_channel, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = layer(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = [64 * self.block.expansion * 2**i for i in range(4)]
        for i, (count, before) in enumerate(zip(self.blocks, [64, *channels], strict=False)):
            setattr(self, f"layer{i + 1}", self._layer(before, 64 * 2**i, count, i, layer))
        self.channels = channels[-1]
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        normalized = bool(pretrained) if imagenet_normalization is None else imagenet_normalization
        self.images = InputImages(
            input_channel, image_size, IMAGENET if normalized else None, "bilinear"
        )
        if pretrained and load_pretrained:
            fill(self, *pretrained_weights(pretrained, self.torchvision_name, pretrained_sha256))
        if freeze:
            self.requires_grad_(False).eval()
        self.film = self._films(language_dim, lang_emb_dim) if self.uses_language else None

    def _layer(
        self, in_channels: int, channels: int, count: int, number: int, norm: type[nn.Module]
    ) -> nn.Sequential:
        blocks = [self.block(in_channels, channels, 1 if number == 0 else 2, norm)]
        out = channels * self.block.expansion
        blocks += [self.block(out, channels, 1, norm) for _ in range(count - 1)]
        return nn.Sequential(*blocks)

    @property
    def normalizes(self) -> bool:
        """True if colours are normalized as for ImageNet."""
        return self.images.normalizes

    def _films(self, language_dim: int | None, stated: int | None) -> nn.ModuleList:
        if language_dim is None:
            raise ConfigError(
                f"{type(self).__name__} is conditioned on language: it needs an observation 'lang_emb', a vector, "
                "under observation.modalities.obs.low_dim"
            )
        if stated not in (None, language_dim):
            raise ConfigError(
                f"backbone_kwargs.lang_emb_dim is {stated}, but observation 'lang_emb' has {language_dim} values; "
                "remove lang_emb_dim"
            )
        widths = [64 * self.block.expansion * 2**i for i in range(4) for _ in range(self.blocks[i])]
        return nn.ModuleList(FiLM(language_dim, width) for width in widths)

    def _blocks(self) -> Iterator[nn.Module]:
        for number in range(1, 5):
            yield from self.get_submodule(f"layer{number}").children()

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the output's shape ``(channels, H / 32, W / 32)``, rounded up, for an input ``(C, H, W)``."""
        _, height, width = input_shape
        if self.images.size is not None:
            height = width = self.images.size
        return (self.channels, math.ceil(height / 32), math.ceil(width / 32))

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; a frozen trunk stays in evaluation mode."""
        return super().train(mode and not self.frozen)

    def forward(self, x: Tensor, language: Tensor | None = None) -> Tensor:
        """Map images ``(B, C, H, W)`` with values in [0, 1] to features; FiLM also needs embeddings ``(B, D)``."""
        no_gradient = self.frozen and self.film is None
        with torch.set_grad_enabled(torch.is_grad_enabled() and not no_gradient):
            x = self.images(x)
            x = self.maxpool(torch.relu_(self.bn1(self.conv1(x))))
            for number, block in enumerate(self._blocks()):
                x = block(x)
                if self.film is not None:
                    x = self.film[number](x, language)
        return x


class ResNet18Conv(ResNet):
    """ResNet with 18 layers, 11.2 million weights and 512 channels."""

    block, blocks, torchvision_name = BasicBlock, (2, 2, 2, 2), "resnet18"


class ResNet34Conv(ResNet):
    """ResNet with 34 layers, 21.3 million weights and 512 channels."""

    block, blocks, torchvision_name = BasicBlock, (3, 4, 6, 3), "resnet34"


class ResNet50Conv(ResNet):
    """ResNet with 50 layers, 23.5 million weights and 2048 channels."""

    block, blocks, torchvision_name = Bottleneck, (3, 4, 6, 3), "resnet50"


class ResNet18ConvFiLM(ResNet18Conv):
    """:class:`ResNet18Conv` conditioned on language."""

    uses_language = True


class ResNet34ConvFiLM(ResNet34Conv):
    """:class:`ResNet34Conv` conditioned on language."""

    uses_language = True


class ResNet50ConvFiLM(ResNet50Conv):
    """:class:`ResNet50Conv` conditioned on language."""

    uses_language = True
