"""Files of vision transformers: prefixes, positions, and what is refused."""

import hashlib

import pytest
import torch

from imitate.errors import ConfigError
from imitate.models.vit import VC1, DINOv2, SigLIP
from imitate.models.vit_weights import by_timm_names

SMALL = {"width": 32, "depth": 2, "heads": 2, "image_size": 28}


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


def without(weights, name):
    return {key: value for key, value in weights.items() if key != name}


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (DINOv2, lambda w: without(w, "norm.bias"), "it lacks 'norm.bias'; choose the backbone"),
        (
            DINOv2,
            lambda w: {**w, "register_tokens": torch.zeros(1, 4, 32)},
            "has besides 'reg_token'; set backbone_kwargs.registers to 4",
        ),
        (
            DINOv2,
            lambda w: {**w, "blocks.2.ls1.gamma": torch.ones(32)},
            "has besides 'blocks.2.ls1.gamma'; set backbone_kwargs.size",
        ),
        (VC1, lambda w: w, "has besides 'blocks.0.ls1.gamma', .* and 1 more"),
        (SigLIP, lambda w: w, "is not a SigLIP as configured: it has besides 'cls_token'"),
        (DINOv2, lambda w: {**w, "norm.bias": torch.zeros(3)}, r"'norm.bias' in .* is \(3,\), but"),
        (DINOv2, lambda w: {**w, "pos_embed": torch.zeros(1, 7, 32)}, "positions of 6 patches"),
        (DINOv2, lambda w: {"a": torch.zeros(3)}, "has 0 vision transformers, expected one"),
        (
            DINOv2,
            lambda w: {**{f"b.{n}": v for n, v in w.items()}, **w},
            "has 2 vision transformers",
        ),
    ],
)
def test_refused(weights, kind, change, message, tmp_path):
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
    found = by_timm_names(
        {
            "patch_embed.proj.weight": torch.zeros(2, 3, 4, 4),
            "blocks.0.attn.q.weight": torch.zeros(2, 2),
        },
        tmp_path,
    )
    assert set(found) == {"patch_embed.proj.weight"}
