"""Trunks put together with pooling and a linear map."""

import pytest
import torch

from imitate.errors import ConfigError
from imitate.models.resnet import ResNet18Conv, ResNet50Conv
from imitate.models.visual import (
    ShallowConv,
    VisualCore,
    VisualCoreLanguageConditioned,
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("size", [(76, 76), (84, 100), (33, 64)])
@pytest.mark.parametrize("kind", [ResNet18Conv, ResNet50Conv, ShallowConv])
def test_output_shape_of_trunks(kind, size):
    trunk = kind(input_channel=3).eval()
    out = trunk(torch.rand(1, 3, *size))
    assert tuple(out.shape[1:]) == trunk.output_shape((3, *size))


def test_shallow_conv_heeds_its_output_channels():
    assert ShallowConv(1, output_channel=5)(torch.rand(1, 1, 8, 8)).shape == (1, 5, 4, 4)


def test_visual_core_defaults():
    core = VisualCore((3, 76, 76))
    assert core.output_shape == (64,)
    assert core(torch.rand(2, 3, 76, 76)).shape == (2, 64)
    assert core.pool.num_kp == 32
    assert core.linear.weight.shape == (64, 64)


@pytest.mark.parametrize(
    ("kwargs", "shape"),
    [
        ({"pool_class": "SpatialMeanPool", "feature_dimension": None}, (7,)),
        ({"pool_class": None, "feature_dimension": None}, (7 * 4 * 5,)),
        ({"pool_class": None, "feature_dimension": None, "flatten": False}, (7, 4, 5)),
        ({"pool_kwargs": {"num_kp": 3, "temperature": 2.0}, "feature_dimension": 6}, (6,)),
        ({"pool_kwargs": {"num_kp": 3}, "feature_dimension": None}, (6,)),
    ],
)
def test_visual_core_options(kwargs, shape):
    core = VisualCore(
        (2, 8, 10),
        backbone_class="ShallowConv",
        backbone_kwargs={"output_channel": 7, "pretrained": False},
        **kwargs,
    )
    assert core.output_shape == shape
    assert core(torch.rand(3, 2, 8, 10)).shape == (3, *shape)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"backbone_class": "ResNet18"}, "backbone_class: .*did you mean 'ResNet18Conv'"),
        ({"pool_class": "SpatialSoftMax"}, "pool_class: .*did you mean 'SpatialSoftmax'"),
        ({"backbone_kwargs": {"pretraind": True}}, "did you mean 'pretrained'"),
        ({"pool_kwargs": {"num_kps": 3}}, "did you mean 'num_kp'"),
        ({"flatten": False}, "needs flatten true"),
    ],
)
def test_visual_core_refuses(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        VisualCore((3, 64, 64), **kwargs)


@pytest.mark.parametrize("size", [(32, 32), (24, 24), (32, 128), (128, 20)])
def test_images_of_which_spatial_softmax_would_see_nothing_are_refused(size):
    with pytest.raises(ConfigError, match="x1 places|1x.* places.*'ShallowConv'"):
        VisualCore((3, *size))
    VisualCore((3, *size), "ShallowConv")
    VisualCore((3, *size), pool_class=None)


def test_visual_core_gives_the_same_for_both_layouts_of_images():
    core = VisualCore((3, 40, 40)).eval()
    x = torch.rand(2, 3, 40, 40)
    last = x.to(memory_format=torch.channels_last)
    torch.testing.assert_close(core(last), core(x), atol=1e-5, rtol=1e-5)


def test_keypoints_are_what_the_pooling_gives_without_noise():
    core = VisualCore((3, 64, 64), feature_dimension=None, pool_kwargs={"noise_std": 0.3}).eval()
    x = torch.rand(2, 3, 64, 64)
    places = core.keypoints(x)
    assert places.shape == (2, 32, 2)
    assert torch.equal(places.flatten(1), core(x))
    assert places.abs().max() <= 1
    assert torch.equal(places, core.train(False).keypoints(x))
    assert VisualCore((3, 64, 64), pool_class="SpatialMeanPool").keypoints(x) is None


def test_conditioned_on_language():
    core = VisualCoreLanguageConditioned((3, 40, 40), language_dim=5).eval()
    assert isinstance(core.backbone, ResNet18Conv)
    assert core.uses_language
    x, words = torch.rand(2, 3, 40, 40), torch.randn(2, 5)
    assert core(x, words).shape == (2, 64)
    plain = VisualCore((3, 40, 40)).eval()
    plain.load_state_dict(core.state_dict(), strict=False)
    torch.testing.assert_close(plain(x), core(x, words))  # FiLM begins as the identity


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            VisualCore,
            {"backbone_class": "R3MConv"},
            "R3M is a ResNet: take ResNet18Conv.*pretrained",
        ),
        (VisualCore, {"backbone_class": "MVPConv"}, "take VC1 with MVP's file"),
        (
            VisualCoreLanguageConditioned,
            {"backbone_class": "ResNet18Conv", "language_dim": 3},
            "is ResNet18Conv, but VisualCoreLanguageConditioned needs one of ResNet18ConvFiLM",
        ),
        (VisualCoreLanguageConditioned, {}, "needs an observation 'lang_emb'"),
        (
            VisualCoreLanguageConditioned,
            {"language_dim": 3, "backbone_kwargs": {"lang_emb_dim": 768}},
            "lang_emb_dim is 768, but observation 'lang_emb' has 3 values",
        ),
    ],
)
def test_refused_trunks(kind, options, message):
    with pytest.raises(ConfigError, match=message):
        kind((3, 64, 64), **options)
