"""Vision transformers, beside timm's and those of transformers on weights that are a function of their names."""

import json
import math
import zlib
from pathlib import Path

import pytest
import torch

from imitate.errors import ConfigError
from imitate.models.visual import BACKBONES, VisualCore
from imitate.models.vit import VC1, DINOv2, SigLIP, ViT

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
    core = VisualCore(
        (3, 84, 60), "SigLIP", "QueryPool", {**SMALL, "image_size": 32}, feature_dimension=8
    )
    assert core(torch.rand(2, 3, 84, 60)).shape == (2, 8)
    flat = torch.full((1, 3, 84, 60), 0.25)
    trunk = SigLIP(**{**SMALL, "image_size": 32}, imagenet_normalization=True)
    torch.testing.assert_close(trunk.images(flat), torch.full((1, 3, 32, 32), -0.5))


def test_a_frozen_trunk_does_not_change():
    trunk = VC1(**{**SMALL, "image_size": 32}, freeze=True, load_pretrained=False).train()
    assert not trunk.training
    assert not trunk(torch.rand(1, 3, 32, 32)).requires_grad
    assert not any(weight.requires_grad for weight in trunk.parameters())


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (DINOv2, {"size": "giant"}, "backbone_kwargs.size: unknown 'giant'"),
        (DINOv2, {"image_size": 100}, "image_size is 100; DINOv2 .* multiple of 14"),
        (VC1, {"pretrained": True}, "VC1 has no weights of its own; give the path"),
        (SigLIP, {"features": "class"}, "SigLIP has no class token"),
        (VC1, {"features": "both"}, "features is 'both'; expected 'patches' or 'class'"),
        (VC1, {"lr_scale": 0}, "lr_scale is 0"),
        (VC1, {"input_channel": 1}, "VC1 sees colour images of 3 channels, got 1"),
        (VC1, {"width": 32, "heads": 5}, "5 heads do not divide 32 features"),
    ],
)
def test_refused(kind, options, message):
    with pytest.raises(ConfigError, match=message):
        kind(**options)


def test_spatial_softmax_of_one_cell_is_refused():
    with pytest.raises(ConfigError, match="SpatialSoftmax finds no places"):
        VisualCore(
            (3, 32, 32), "VC1", "SpatialSoftmax", {**SMALL, "features": "class", "image_size": 32}
        )


def test_a_random_frozen_trunk_is_warned_of():
    with pytest.warns(UserWarning, match="they stay random"):
        ViT(**{**SMALL, "image_size": 32}, freeze=True)
