"""Vision transformers as trunks, which map an image's patches to a feature map; weights have timm's names.

Dosovitskiy et al., ICLR 2021 (arXiv:2010.11929), with LayerNorm before each sublayer. The families differ in their
prefix tokens, patch size, activation, and in the colours that they were trained with:

* :class:`DINOv2`: Oquab et al. 2023 (arXiv:2304.07193), with registers Darcet et al. 2023 (arXiv:2309.16588);
* :class:`SigLIP`: Zhai et al., ICCV 2023 (arXiv:2303.15343), without its attention-pooling head;
* :class:`VC1`: Majumdar et al., NeurIPS 2023 (arXiv:2303.18240), a masked autoencoder (He et al., CVPR 2022,
  arXiv:2111.06377), as are the files of MAE and MVP.

Departures: the position of the class token is part of the token itself; learned positions are resampled to the number
of patches once, when a file is read.

Published weights are loaded with conversion of their names. The supported layouts are timm's, also inside OpenCLIP's
files; the files published by DINOv2, MAE, MVP and VC-1; and DINOv2, SigLIP and ViTMAE at Hugging Face. Heads, decoders
and mask tokens are not loaded; every other weight must fit.
"""

import math
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import interpolate
from typing_extensions import Self

from imitate.errors import ConfigError, nearest
from imitate.models.attention import head_dim
from imitate.models.layout import Shape
from imitate.models.pretrained import (
    IMAGENET,
    PRETRAINED_KEY,
    ColourStatistics,
    InputImages,
    Weights,
    read_weights,
    without_wrapper,
)

_FIRSTS = (
    "patch_embed.proj.weight",
    "embeddings.patch_embedding.weight",
    "embeddings.patch_embeddings.projection.weight",
)
_LEFT_OUT = ("head.", "attn_pool.", "decoder_", "mask_token", "embeddings.mask_token", "pooler.")
_RENAMED = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"^register_tokens$", "reg_token"),
        (r"^embeddings\.register_tokens$", "reg_token"),
        (r"^embeddings\.cls_token$", "cls_token"),
        (r"^embeddings\.position_embedding(s|\.weight)$", "pos_embed"),
        (r"^embeddings\.patch_embedding(s\.projection)?\.", "patch_embed.proj."),
        (r"^encoder\.layers?\.", "blocks."),
        (r"^(post_layernorm|layernorm)\.", "norm."),
        (r"\.layer_norm([12])\.", r".norm\1."),
        (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
        (r"\.(attention\.output\.dense|attention\.o_proj|self_attn\.out_proj)\.", ".attn.proj."),
        (r"\.layernorm_before\.", ".norm1."),
        (r"\.layernorm_after\.", ".norm2."),
        (r"\.intermediate\.dense\.", ".mlp.fc1."),
        (r"^(blocks\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
        (r"\.(attention|self_attn)\.([qkv])_proj\.", r".attn.\2."),
        (r"\.attention\.attention\.([qkv])(uery|ey|alue)\.", r".attn.\1."),
    )
)
_SHOWN = 3


def fill_vit(trunk: nn.Module, source: str, sha256: str | None = None) -> None:
    """Load a file's weights into a trunk, in place.

    Args:
        trunk: a :class:`~imitate.models.vit.ViT`.
        source: path of the file.
        sha256: checksum that the file must have; None to skip the check.

    Raises:
        ConfigError: the file cannot be read, or its weights belong to another network.
    """
    path = Path(source).expanduser()
    state = trunk.state_dict()
    weights = by_timm_names(read_weights(path, sha256), path)
    if "pos_embed" in weights:
        _place_positions(weights, state["pos_embed"].shape[1], path)
    missing = [name for name in state if name not in weights]
    unknown = [name for name in weights if name not in state]
    if missing or unknown:
        words = [
            f"{verb} {_some(names)}"
            for verb, names in (("lacks", missing), ("also has", unknown))
            if names
        ]
        raise ConfigError(
            f"{PRETRAINED_KEY}: {path} is not a {type(trunk).__name__} as configured: it {' and '.join(words)}; "
            f"{_advice(missing, unknown, weights)}"
        )
    for name, value in state.items():
        if weights[name].shape != value.shape:
            raise ConfigError(
                f"{PRETRAINED_KEY}: '{name}' in {path} is {tuple(weights[name].shape)}, but {type(trunk).__name__} as "
                f"configured needs {tuple(value.shape)}; set backbone_kwargs.size and patch to the file's"
            )
        value.copy_(weights[name])


def by_timm_names(content: Mapping[str, object], path: Path) -> Weights:
    """Return the weights of the network with timm's names, as float32.

    Args:
        content: content of a file.
        path: path of the file, for messages.
    """
    content = without_wrapper(content)
    found = [
        name.removesuffix(first)
        for name in content
        for first in _FIRSTS
        if name == first or name.endswith(f".{first}")
    ]
    if len(found) != 1:
        raise ConfigError(
            f"{PRETRAINED_KEY}: {path} has {len(found)} vision transformers, expected one, with weights named "
            f"'{_FIRSTS[0]}' as in timm, or as at Hugging Face"
        )
    weights: Weights = {}
    for name, value in content.items():
        own = name.removeprefix(found[0])
        if (
            name.startswith(found[0])
            and isinstance(value, Tensor)
            and not own.startswith(_LEFT_OUT)
        ):
            weights[_renamed(own)] = value.float()
    return _joined(weights)


def _renamed(name: str) -> str:
    for pattern, replacement in _RENAMED:
        name = pattern.sub(replacement, name)
    return name


def _joined(weights: Weights) -> Weights:
    """Return the weights with queries, keys and values of a block joined in one matrix."""
    joined: Weights = {}
    for name, value in weights.items():
        if ".attn.q." in name:
            parts = [weights.get(name.replace(".attn.q.", f".attn.{part}.")) for part in "qkv"]
            if all(part is not None for part in parts):
                joined[name.replace(".attn.q.", ".attn.qkv.")] = torch.cat(parts)  # type: ignore[arg-type]
        elif ".attn.k." not in name and ".attn.v." not in name:
            joined[name] = value
    return joined


def _place_positions(weights: Weights, patches: int, path: Path) -> None:
    """Resample learned positions to a square with ``patches`` patches.

    The position of the class token is added to the class token itself.
    """
    positions = weights["pos_embed"].flatten(0, -2)
    if math.isqrt(len(positions)) ** 2 != len(positions):
        if "cls_token" in weights:
            weights["cls_token"] = weights["cls_token"] + positions[0]
        positions = positions[1:]
    side = math.isqrt(len(positions))
    if side**2 != len(positions) or side == 0:
        raise ConfigError(
            f"{PRETRAINED_KEY}: {path} has positions of {len(positions)} patches; expected a square number, such as 256"
        )
    wanted = math.isqrt(patches)
    grid = positions.T.reshape(1, -1, side, side)
    if wanted != side:
        grid = interpolate(grid, (wanted, wanted), mode="bicubic", antialias=True)
    weights["pos_embed"] = grid.flatten(2).transpose(1, 2)


def _some(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def _advice(missing: list[str], unknown: list[str], weights: Weights) -> str:
    if "reg_token" in unknown:
        return f"set backbone_kwargs.registers to {weights['reg_token'].shape[1]}"
    if "reg_token" in missing:
        return "set backbone_kwargs.registers to 0"
    if all(name.startswith("blocks.") for name in (*missing, *unknown)):
        return "set backbone_kwargs.size to the file's"
    return "choose the backbone_class of the file's family"


Features = Literal["patches", "class"]

SIZES: dict[str, tuple[int, int, int, int]] = {
    "tiny": (192, 12, 3, 768),
    "small": (384, 12, 6, 1536),
    "base": (768, 12, 12, 3072),
    "large": (1024, 24, 16, 4096),
    "so400m": (1152, 27, 16, 4304),
}
"""For each size: number of features D, of blocks, of heads, and of hidden features of the MLPs."""
_EPS = 1e-6


class Attention(nn.Module):
    """Multi-head self-attention without a mask."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Compute attention among tokens ``(B, T, D)``."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.proj(y.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    """Two linear maps with a GELU between them."""

    def __init__(self, dim: int, hidden: int, gelu: str) -> None:
        super().__init__()
        self.gelu = gelu
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Transform tokens ``(B, T, D)``."""
        y: Tensor = self.fc2(functional.gelu(self.fc1(x), approximate=self.gelu))
        return y


class LayerScale(nn.Module):
    """LayerScale: a learned factor for each feature (Touvron et al., ICCV 2021, arXiv:2103.17239)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Scale tokens ``(B, T, D)``."""
        return x * self.gamma


class Block(nn.Module):
    """Attention and an MLP, each after a LayerNorm, scaled, and added to its input."""

    def __init__(self, dim: int, heads: int, hidden: int, gelu: str, scaled: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=_EPS)
        self.attn = Attention(dim, heads)
        self.ls1 = LayerScale(dim) if scaled else nn.Identity()
        self.norm2 = nn.LayerNorm(dim, eps=_EPS)
        self.mlp = FeedForward(dim, hidden, gelu)
        self.ls2 = LayerScale(dim) if scaled else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Transform tokens ``(B, T, D)``."""
        x = x + self.ls1(self.attn(self.norm1(x)))
        y: Tensor = x + self.ls2(self.mlp(self.norm2(x)))
        return y


class PatchEmbed(nn.Module):
    """Linear map of each patch, as a convolution."""

    def __init__(self, dim: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(B, 3, H, W)`` to tokens ``(B, H W / patch^2, D)``, row by row."""
        y: Tensor = self.proj(x).flatten(2).transpose(1, 2)
        return y


class ViT(nn.Module):
    """Base class of vision transformer trunks for images of one size; each subclass is a family of published files.

    Args:
        input_channel: number of channels, which must be 3.
        pretrained: false, or the path of a file with weights (.safetensors, .pth, .bin).
        pretrained_sha256: checksum that the file must have; None to skip the check.
        size: name in :data:`SIZES`.
        width: D, number of features of a patch; None if given by ``size``.
        depth: number of blocks; None if given by ``size``.
        heads: number of attention heads; None if given by ``size``.
        patch: side of a patch in pixels; None for the family's default.
        registers: number of register tokens beside class token and patches; DINOv2's files with registers have 4.
        image_size: side length, in pixels, of the square to which images are resized, a multiple of ``patch``.
        features: 'patches': a map of the patches' features; 'class': only the class token, as a map with one cell.
        freeze: do not train the weights.
        lr_scale: factor on the learning rate of the trunk's weights.
        imagenet_normalization: normalize colours in [0, 1] as in the family's training; None to do so only if the
            weights are pretrained.
        load_pretrained: read the file; false if a checkpoint contains the weights.
    """

    patch_pixels: ClassVar[int] = 16
    has_class_token: ClassVar[bool] = True
    layer_scale: ClassVar[bool] = False
    gelu: ClassVar[str] = "none"
    colours: ClassVar[ColourStatistics] = IMAGENET

    def __init__(
        self,
        input_channel: int = 3,
        pretrained: bool | str = False,
        pretrained_sha256: str | None = None,
        size: str = "base",
        width: int | None = None,
        depth: int | None = None,
        heads: int | None = None,
        patch: int | None = None,
        registers: int = 0,
        image_size: int | None = 224,
        features: Features = "patches",
        freeze: bool = False,
        lr_scale: float = 1.0,
        imagenet_normalization: bool | None = None,
        load_pretrained: bool = True,
    ) -> None:
        super().__init__()
        if size not in SIZES:
            raise ConfigError(f"backbone_kwargs.size: unknown '{size}'; {nearest(size, SIZES)}")
        dim, blocks, num_heads, hidden = SIZES[size]
        if width is not None:
            dim, hidden = width, 4 * width
        self.patch = patch or self.patch_pixels
        self._check(input_channel, pretrained, image_size, features, lr_scale)
        assert image_size is not None
        if freeze and not pretrained and load_pretrained:
            warnings.warn(
                "backbone_kwargs.freeze is true without pretrained: unless experiment.ckpt_path provides weights, "
                "they stay random; set freeze to false or give pretrained",
                stacklevel=2,
            )
        num_heads = heads or num_heads
        head_dim(dim, num_heads)
        self.channels, self.features = dim, features
        self.frozen, self.lr_scale = freeze, lr_scale
        self.side = image_size // self.patch
        normalized = bool(pretrained) if imagenet_normalization is None else imagenet_normalization
        self.images = InputImages(3, image_size, self.colours if normalized else None, "bicubic")
        self.patch_embed = PatchEmbed(dim, self.patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if self.has_class_token else None
        self.reg_token = nn.Parameter(torch.zeros(1, registers, dim)) if registers else None
        self.pos_embed = nn.Parameter(torch.zeros(1, self.side**2, dim))
        self.blocks = nn.Sequential(
            *(
                Block(dim, num_heads, hidden, self.gelu, self.layer_scale)
                for _ in range(depth or blocks)
            )
        )
        self.norm = nn.LayerNorm(dim, eps=_EPS)
        self._initialize()
        if pretrained and load_pretrained:
            fill_vit(self, str(pretrained), pretrained_sha256)
        if freeze:
            self.requires_grad_(False).eval()

    def _check(
        self,
        channels: int,
        pretrained: bool | str,
        image_size: int | None,
        features: str,
        lr_scale: float,
    ) -> None:
        name = type(self).__name__
        if channels != 3:
            raise ConfigError(f"{name} needs colour images of 3 channels, got {channels}")
        if pretrained is True:
            raise ConfigError(
                f"backbone_kwargs.pretrained is true, but {name} has no weights of its own; give the path of a file"
            )
        if image_size is None or image_size < 1 or image_size % self.patch:
            raise ConfigError(
                f"backbone_kwargs.image_size is {image_size}; {name} with patches of {self.patch} pixels needs a "
                f"multiple of {self.patch}, such as {16 * self.patch}"
            )
        if features not in get_args(Features):
            raise ConfigError(
                f"backbone_kwargs.features is '{features}'; expected 'patches' or 'class'"
            )
        if features == "class" and not self.has_class_token:
            raise ConfigError(
                f"backbone_kwargs.features is 'class', but {name} has no class token; expected 'patches'"
            )
        if lr_scale <= 0:
            raise ConfigError(
                f"backbone_kwargs.lr_scale is {lr_scale}; expected more than 0; to keep the weights unchanged, set "
                "freeze to true"
            )

    def _initialize(self) -> None:
        """Initialize weights as in ViTs: normal, std 0.02, truncated at two standard deviations."""
        learned_tokens = ("pos_embed", "cls_token", "reg_token")
        for name, weight in self.named_parameters():
            if name in learned_tokens or (name.endswith("weight") and weight.dim() > 1):
                nn.init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the output's shape for an input ``(C, H, W)``.

        The shape is ``(D, image_size / patch, image_size / patch)``, or ``(D, 1, 1)`` for the class token.
        """
        side = 1 if self.features == "class" else self.side
        return (self.channels, side, side)

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; a frozen trunk stays in evaluation mode."""
        return super().train(mode and not self.frozen)

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``(B, 3, H, W)`` with values in [0, 1] to features of :meth:`output_shape`."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            tokens = self.tokens(x)
            if self.features == "class":
                return tokens[:, 0, :, None, None]
            patches = tokens[:, -(self.side**2) :].transpose(1, 2)
            return patches.reshape(len(x), self.channels, self.side, self.side)

    def tokens(self, x: Tensor) -> Tensor:
        """Map images to normalized tokens ``(B, T, D)``: class token, registers, patches row by row."""
        x = self.patch_embed(self.images(x)) + self.pos_embed
        prefix = [
            t.expand(len(x), -1, -1) for t in (self.cls_token, self.reg_token) if t is not None
        ]
        y: Tensor = self.norm(self.blocks(torch.cat([*prefix, x], dim=1)))
        return y


class DINOv2(ViT):
    """ViT with patches of 14 pixels, a class token, and scaled sublayers."""

    patch_pixels, layer_scale = 14, True


class SigLIP(ViT):
    """ViT with patches of 16 pixels (so400m: 14), without class token; colours are scaled to [-1, 1]."""

    has_class_token, gelu = False, "tanh"
    colours = ColourStatistics((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


class VC1(ViT):
    """ViT with patches of 16 pixels and a class token, for masked autoencoders such as VC-1, MAE and MVP."""
