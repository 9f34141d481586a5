"""Loading of published weights of vision transformers, with conversion of their names.

Supported layouts: timm's, also inside OpenCLIP's files; the files published by DINOv2, MAE, MVP and VC-1; and DINOv2,
SigLIP and ViTMAE at Hugging Face. Heads, decoders and mask tokens are left out;
every other weight must fit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from imitate.errors import ConfigError
from imitate.models.pretrained import PRETRAINED_KEY, Weights, read_weights, without_wrapper

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
        sha256: checksum that the file must have; None: not checked.

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
            for verb, names in (("lacks", missing), ("has besides", unknown))
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
    """Resample the positions to a square with this number of patches.

    The class token's position is added to the token.
    """
    positions = weights["pos_embed"].flatten(0, -2)
    if math.isqrt(len(positions)) ** 2 != len(positions):
        if "cls_token" in weights:
            weights["cls_token"] = weights["cls_token"] + positions[0]
        positions = positions[1:]
    side = math.isqrt(len(positions))
    if side**2 != len(positions) or side == 0:
        raise ConfigError(
            f"{PRETRAINED_KEY}: {path} has positions of {len(positions)} patches; expected a square"
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
