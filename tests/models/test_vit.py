"""Vision transformers and where their weights come from."""

import hashlib
import json
import math
import zlib
from pathlib import Path

import pytest
import torch

from imitate.errors import ConfigError
from imitate.models.visual import BACKBONES, VisualCore
from imitate.models.vit import VC1, DINOv2, SigLIP, ViT, by_timm_names

RECORDED = json.loads((Path(__file__).parent / "fixtures" / "vit.json").read_text())
SMALL = {"width": 32, "depth": 2, "heads": 2, "image_size": 28}


def made_up(name, shape):
    x = torch.arange(math.prod(shape), dtype=torch.float64)
    values = (0.2 * torch.sin(0.7 * x + zlib.crc32(name.encode()) % 1000)).float().reshape(shape)
    return 1 + values if "norm" in name and name.endswith("weight") else values


def weights_of(kind):
    return {name: made_up(name, shape) for name, shape in RECORDED[kind]["shapes"].items()}


def images(side):
    x = torch.arange(2 * 3 * side * side, dtype=torch.float64)
    return (0.5 + 0.5 * torch.sin(0.013 * x * x % 97)).float().reshape(2, 3, side, side)


@pytest.mark.parametrize("kind", RECORDED)
def test_the_families_own_code_gives_the_same(kind, tmp_path):
    case = RECORDED[kind]
    torch.save(weights_of(kind), tmp_path / "w.pth")
    trunk = BACKBONES[case["family"]](pretrained=str(tmp_path / "w.pth"), **case["options"]).eval()
    tokens = trunk.tokens(images(case["options"]["image_size"]))
    expected = torch.tensor(case["tokens"]).reshape(case["tokens_shape"])
    torch.testing.assert_close(tokens, expected, atol=5e-5, rtol=1e-4)


def test_map_of_patches_and_class_token():
    trunk = DINOv2(**SMALL, registers=4).eval()
    x = torch.rand(2, 3, 28, 28)
    tokens, out = trunk.tokens(x), trunk(x)
    assert tokens.shape == (2, 1 + 4 + 4, 32)
    assert trunk.output_shape((3, 28, 28)) == out.shape[1:] == (32, 2, 2)
    torch.testing.assert_close(out[:, :, 1, 0], tokens[:, 7])  # the second row's first patch
    trunk.features = "class"
    assert trunk.output_shape((3, 28, 28)) == (32, 1, 1)
    torch.testing.assert_close(trunk(x)[:, :, 0, 0], tokens[:, 0])


def test_images_of_other_sizes_are_resized():
    options = {**SMALL, "image_size": 32}
    core = VisualCore((3, 84, 60), "SigLIP", "QueryPool", options, feature_dimension=8)
    assert core(torch.rand(2, 3, 84, 60)).shape == (2, 8)
    flat = torch.full((1, 3, 84, 60), 0.25)
    trunk = SigLIP(**options, imagenet_normalization=True)
    torch.testing.assert_close(trunk.images(flat), torch.full((1, 3, 32, 32), -0.5))


def test_a_frozen_trunk_does_not_change():
    trunk = VC1(**{**SMALL, "image_size": 32}, freeze=True, load_pretrained=False).train()
    assert not trunk.training
    assert not trunk(torch.rand(1, 3, 32, 32)).requires_grad
    assert not any(weight.requires_grad for weight in trunk.parameters())


def one_cell(**options):
    return VisualCore((3, 32, 32), "VC1", "SpatialSoftmax", options)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (DINOv2, {"size": "giant"}, "backbone_kwargs.size: unknown 'giant'"),
        (DINOv2, {"image_size": 100}, "image_size is 100; DINOv2 .* multiple of 14"),
        (VC1, {"pretrained": True}, "VC1 has no weights of its own; give the path"),
        (SigLIP, {"features": "class"}, "SigLIP has no class token"),
        (VC1, {"features": "both"}, "features is 'both'; expected 'patches' or 'class'"),
        (VC1, {"lr_scale": 0}, "lr_scale is 0"),
        (VC1, {"input_channel": 1}, "VC1 needs colour images of 3 channels, got 1"),
        (VC1, {"width": 32, "heads": 5}, "5 heads do not divide 32 features"),
        (one_cell, {**SMALL, "features": "class", "image_size": 32}, "SpatialSoftmax needs several positions"),
    ],
)  # fmt: skip
def test_refused(kind, options, message):
    with pytest.raises(ConfigError, match=message):
        kind(**options)


def test_a_random_frozen_trunk_is_warned_of():
    with pytest.warns(UserWarning, match="they stay random"):
        ViT(**{**SMALL, "image_size": 32}, freeze=True)


@pytest.fixture
def weights():
    torch.manual_seed(3)
    return DINOv2(**SMALL).state_dict()


def saved(content, tmp_path):
    torch.save(content, tmp_path / "w.pth")
    return str(tmp_path / "w.pth")


@pytest.mark.parametrize("prefix", ["", "visual.trunk.", "module."])
def test_prefixes_and_wrappers(weights, prefix, tmp_path):
    content = {f"{prefix}{name}": value for name, value in weights.items()}
    content[f"{prefix}head.weight"] = torch.ones(3)
    if prefix:
        content["text.weight"] = torch.ones(3)  # of another part of the file's model
    trunk = DINOv2(**SMALL, pretrained=saved({"model": content, "epoch": 3}, tmp_path))
    for name, value in trunk.state_dict().items():
        assert torch.equal(value, weights[name]), name
    assert trunk.images.normalizes


def test_half_precision_becomes_float32(weights, tmp_path):
    path = saved({name: value.half() for name, value in weights.items()}, tmp_path)
    assert DINOv2(**SMALL, pretrained=path).pos_embed.dtype == torch.float32


def test_positions_of_more_patches_are_resampled(weights, tmp_path):
    # A plane stays a plane: rows 0..5 averaged in pairs of equal weight on either side.
    rows = torch.arange(6.0).repeat_interleave(6).view(1, 36, 1).expand(1, 36, 32)
    path = saved({**weights, "pos_embed": rows}, tmp_path)
    small = DINOv2(**SMALL, pretrained=path).pos_embed.detach().view(2, 2, 32)
    assert small[0, 0, 0] == pytest.approx(5 - float(small[1, 0, 0]), abs=1e-5)
    assert 0.5 < small[0, 0, 0] < 1.5
    torch.testing.assert_close(small[:, 0], small[:, 1])


def test_the_position_of_the_class_token_joins_it(weights, tmp_path):
    positions = torch.cat([torch.full((1, 1, 32), 5.0), weights["pos_embed"]], dim=1)
    trunk = DINOv2(**SMALL, pretrained=saved({**weights, "pos_embed": positions}, tmp_path))
    torch.testing.assert_close(trunk.cls_token, weights["cls_token"] + 5)
    assert torch.equal(trunk.pos_embed, weights["pos_embed"])


def without(name):
    return lambda weights: {key: value for key, value in weights.items() if key != name}


def more(**values):
    return lambda weights: {**weights, **{k.replace("__", "."): v for k, v in values.items()}}


ZEROS, GAMMA = torch.zeros(1, 7, 32), torch.ones(32)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (DINOv2, without("norm.bias"), "it lacks 'norm.bias'; choose the backbone"),
        (DINOv2, more(register_tokens=ZEROS[:, :4]), "'reg_token'; set backbone_kwargs.registers to 4"),
        (DINOv2, more(blocks__2__ls1__gamma=GAMMA), "'blocks.2.ls1.gamma'; set backbone_kwargs.size"),
        (VC1, more(), "also has 'blocks.0.ls1.gamma', .* and 1 more"),
        (SigLIP, more(), "is not a SigLIP as configured: it also has 'cls_token'"),
        (DINOv2, more(norm__bias=torch.zeros(3)), r"'norm.bias' in .* is \(3,\), but"),
        (DINOv2, more(pos_embed=ZEROS), "positions of 6 patches"),
        (DINOv2, lambda w: {"a": torch.zeros(3)}, "has 0 vision transformers, expected one"),
        (DINOv2, lambda w: {**{f"b.{n}": v for n, v in w.items()}, **w}, "has 2 vision transformers"),
    ],
)  # fmt: skip
def test_refused_in_vit_weights(weights, kind, change, message, tmp_path):
    options = {**SMALL, "patch": 14}
    with pytest.raises(ConfigError, match=message):
        kind(**options, pretrained=saved(change(weights), tmp_path))


def test_the_checksum_is_compared(weights, tmp_path):
    path = saved(weights, tmp_path)
    digest = hashlib.sha256((tmp_path / "w.pth").read_bytes()).hexdigest()
    DINOv2(**SMALL, pretrained=path, pretrained_sha256=digest)
    with pytest.raises(ConfigError, match=f"has the SHA-256 {digest}, but .* is abc"):
        DINOv2(**SMALL, pretrained=path, pretrained_sha256="abc")


def test_a_part_of_queries_keys_and_values_is_missed(tmp_path):
    patches = {"patch_embed.proj.weight": torch.zeros(2, 3, 4, 4)}
    found = by_timm_names({**patches, "blocks.0.attn.q.weight": torch.zeros(2, 2)}, tmp_path)
    assert found.keys() == patches.keys()
