"""Parts of image and scan encoders."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from imitate.errors import ConfigError
from imitate.models.pools import AttentionPool, QueryPool, SpatialMeanPool, SpatialSoftmax
from imitate.models.pretrained import IMAGENET, InputImages
from imitate.models.resnet import CoordConv2d, ResNet18Conv, ResNet50Conv, with_coordinates
from imitate.models.visual import ScanCore, ShallowConv, VisualCore, VisualCoreLanguageConditioned


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
    assert core(torch.rand(2, 3, 76, 76)).shape == (2, *core.output_shape) == (2, 64)
    assert (core.pool.num_kp, core.linear.weight.shape) == (32, (64, 64))


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
    backbone = {"output_channel": 7, "pretrained": False}
    core = VisualCore((2, 8, 10), "ShallowConv", backbone_kwargs=backbone, **kwargs)
    assert core(torch.rand(3, 2, 8, 10)).shape == (3, *core.output_shape) == (3, *shape)


@pytest.mark.parametrize("size", [(32, 32), (24, 24), (32, 128), (128, 20)])
def test_small_images_are_seen_or_refused_where_spatial_softmax_was_asked_for(size):
    with pytest.raises(ConfigError, match="x1 positions|1x.* positions.*'ShallowConv'"):
        VisualCore((3, *size), pool_class="SpatialSoftmax")
    VisualCore((3, *size), "ShallowConv", "SpatialSoftmax")
    core = VisualCore((3, *size)).eval()
    assert core.output_shape == (64,)
    assert not torch.allclose(core(torch.zeros(1, 3, *size)), core(torch.ones(1, 3, *size)))


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


def test_coordinates_by_hand():
    x = with_coordinates(torch.zeros(2, 1, 2, 4))
    assert x.shape == (2, 3, 2, 4)
    assert x[1, 1].tolist() == [[0.0] * 4, [0.5] * 4]
    assert x[1, 2].tolist() == [[0.0, 0.25, 0.5, 0.75]] * 2
    conv = CoordConv2d(1, 1, kernel_size=1, bias=False)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([0.0, 10.0, 1.0]).view(1, 3, 1, 1))
    assert conv(torch.zeros(1, 1, 2, 4))[0, 0, 1].tolist() == [5.0, 5.25, 5.5, 5.75]


def test_colours_by_hand():
    x = torch.full((1, 4, 2, 2), 0.6)
    out = InputImages(4, None, IMAGENET, "bilinear")(x)
    assert out[0, 0, 0, 0].item() == pytest.approx((0.6 - 0.485) / 0.229, abs=1e-6)
    assert torch.equal(out[:, 3], x[:, 3])  # no colour


def test_images_without_colours_stay():
    x = torch.rand(1, 1, 4, 4)
    assert torch.equal(InputImages(1, None, IMAGENET, "bilinear")(x), x)


def test_bicubic_overshoot_is_cut_off():
    x = torch.zeros(1, 3, 4, 4)
    x[..., 2:] = 1.0
    black = (0.0 - 0.485) / 0.229
    assert InputImages(3, 16, IMAGENET, "bicubic")(x)[0, 0].min() == pytest.approx(black, abs=1e-6)
    assert InputImages(3, 16, None, "bicubic")(x).min() < 0


def test_resnet_sees_images_of_its_size():
    trunk = ResNet18Conv(image_size=64).eval()
    x = torch.rand(1, 3, 40, 50)
    resized = torch.nn.functional.interpolate(x, (64, 64), mode="bilinear", antialias=True)
    assert trunk.output_shape((3, 40, 50)) == trunk(x).shape[1:] == (512, 2, 2)
    torch.testing.assert_close(trunk(x), ResNet18Conv.forward(trunk, resized))


def test_spatial_softmax_by_hand():
    pool = SpatialSoftmax((2, 2, 3), num_kp=None)
    maps = torch.zeros(1, 2, 2, 3)
    maps[0, 1, 1, 2] = 100.0  # all attention on the last row and column
    keypoints = pool(maps)
    assert pool.output_shape((2, 2, 3)) == keypoints.shape[1:] == (2, 2)
    torch.testing.assert_close(keypoints[0], torch.tensor([[0.0, 0.0], [1.0, 1.0]]))


def test_spatial_softmax_temperature_by_hand():
    # One row of two pixels at x = -1 and 1, maps 0 and 1: mean x = tanh(1 / (2 temperature)).
    pool = SpatialSoftmax((1, 1, 2), num_kp=None, temperature=0.5)
    x = pool(torch.tensor([[[[0.0, 1.0]]]]))[0, 0, 0]
    assert x.item() == pytest.approx(math.tanh(1.0), abs=1e-6)
    assert list(pool.parameters()) == []


def test_spatial_softmax_variances_by_hand():
    # Equal attention on the four corners: mean 0, variances 1, no covariance.
    pool = SpatialSoftmax((1, 2, 2), num_kp=None, output_variance=True)
    out = pool(torch.zeros(1, 1, 2, 2))
    assert pool.output_shape((1, 2, 2)) == (1, 5)
    torch.testing.assert_close(out[0, 0], torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0]))


def test_spatial_softmax_learns_its_temperature_and_adds_noise_in_training():
    pool = SpatialSoftmax((4, 3, 3), num_kp=6, learnable_temperature=True, noise_std=0.1)
    x = torch.randn(2, 4, 3, 3)
    assert not torch.equal(pool(x), pool(x))
    pool.eval()
    out = pool(x)
    assert torch.equal(out, pool(x))
    out[..., 0].square().sum().backward()
    assert pool.temperature.grad.abs().item() > 0


def test_mean_pool():
    x = torch.arange(12.0).view(1, 2, 2, 3)
    assert SpatialMeanPool((2, 2, 3))(x).tolist() == [[2.5, 8.5]]


def test_keypoints_have_no_noise():
    pool = SpatialSoftmax((2, 2, 3), num_kp=None, noise_std=1.0, output_variance=True)
    maps = torch.zeros(1, 2, 2, 3)
    maps[0, 1, 1, 2] = 100.0
    torch.testing.assert_close(pool.keypoints(maps)[0], torch.tensor([[0.0, 0.0], [1.0, 1.0]]))


def test_attention_is_torchs():
    pool = AttentionPool((16, 3, 4), num_heads=4)
    theirs = nn.MultiheadAttention(16, 4, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([pool.query.weight, pool.key_value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([pool.query.bias, pool.key_value.bias]))
        theirs.out_proj.load_state_dict(pool.output.state_dict())
    x = torch.randn(5, 16, 3, 4)
    tokens = x.flatten(2).transpose(1, 2)
    tokens = torch.cat([x.mean((2, 3))[:, None], tokens], 1) + pool.places
    expected, _ = theirs(tokens[:, :1], tokens, tokens)
    assert pool.output_shape((16, 3, 4)) == (16,)
    torch.testing.assert_close(pool(x), expected[:, 0])


def test_query_pool_beside_torchs_attention():
    pool = QueryPool((12, 2, 3), num_queries=5, query_dim=8, num_heads=2)
    x = torch.randn(4, 12, 2, 3)
    assert pool.output_shape((12, 2, 3)) == pool(x).shape[1:] == (5, 8)
    key, value = pool.key_value(pool.norm(x.flatten(2).transpose(1, 2)) + pool.places).chunk(2, -1)
    attention = nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
    attention.in_proj_weight.data = torch.eye(8).repeat(3, 1)
    attention.out_proj.weight.data = pool.output.weight.data
    expected, _ = attention(pool.queries.expand(4, -1, -1), key, value)
    torch.testing.assert_close(pool(x), expected + pool.output.bias)


def test_query_pool_reads_places():
    pool = QueryPool((8, 2, 2), num_queries=2, query_dim=8, num_heads=2)
    x = torch.randn(1, 8, 2, 2)
    assert (pool(x) - pool(x.flip(-1))).abs().max() > 1e-4


def test_defaults():
    # Lengths of 100 beams: (100 - 8) / 4 + 1 = 24, (24 - 4) / 2 + 1 = 11, 11 - 2 + 1 = 10.
    core = ScanCore((2, 100))
    out = core(torch.randn(3, 2, 100))
    assert out.shape == (3, *core.output_shape) == (3, 640) and (out >= 0).all()


@pytest.mark.parametrize(
    ("kwargs", "shape"),
    [
        ({"feature_dimension": 9}, (9,)),
        ({"flatten": False}, (5, 7)),
        ({"pool_class": "SpatialMeanPool"}, (5,)),
        ({"pool_class": "SpatialSoftmax", "pool_kwargs": {"num_kp": 4}}, (8,)),
        ({"conv_activation": None}, (35,)),
    ],
)
def test_options(kwargs, shape):
    layers = {"out_channels": [3, 5], "kernel_size": [3, 4], "stride": [2, 3], "padding": [1, 2]}
    # 40 beams: (40 + 2 - 3) // 2 + 1 = 20, (20 + 4 - 4) // 3 + 1 = 7.
    core = ScanCore((1, 40), conv_kwargs=layers, **kwargs)
    out = core(torch.randn(3, 1, 40))
    assert out.shape == (3, *core.output_shape) == (3, *shape)
    if "conv_activation" in kwargs:
        assert out.min() < 0


def layers(kernels, strides, padding=None):
    return {
        "kernel_size": kernels, "stride": strides, "out_channels": [4] * len(kernels),
        "padding": padding or [0] * len(kernels), "dilation": [1] * len(kernels),
    }  # fmt: skip


core, scan = partial(VisualCore, (3, 64, 64)), partial(ScanCore, (1, 40))
language = partial(VisualCoreLanguageConditioned, (3, 64, 64))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (core, {"backbone_class": "ResNet18"}, "backbone_class: .*did you mean 'ResNet18Conv'"),
        (core, {"backbone_class": "R3MConv"}, "R3M is a ResNet: use ResNet18Conv.*pretrained"),
        (core, {"backbone_class": "MVPConv"}, "use VC1 with MVP's file"),
        (core, {"pool_class": "SpatialSoftMax"}, "pool_class: .*did you mean 'SpatialSoftmax'"),
        (core, {"backbone_kwargs": {"pretraind": True}}, "did you mean 'pretrained'"),
        (core, {"pool_kwargs": {"num_kps": 3}}, "did you mean 'num_kp'"),
        (core, {"flatten": False}, "needs flatten true"),
        (language, {"backbone_class": "ResNet18Conv", "language_dim": 3}, "needs one of ResNet18ConvFiLM"),
        (language, {}, "needs an observation 'lang_emb'"),
        (language, {"language_dim": 3, "backbone_kwargs": {"lang_emb_dim": 768}}, "is 768, but .*'lang_emb' has 3 val"),
        (partial(AttentionPool, (16, 3, 4)), {"num_heads": 3}, "num_heads is 3, which does not divide the 16 channels"),
        (partial(QueryPool, (8, 2, 2)), {"query_dim": 8, "num_heads": 3}, "does not divide pool_kwargs.query_dim 8"),
        (scan, {"conv_kwargs": {"kernel": [1, 1, 1]}}, "unknown key 'kernel'; did you mean"),
        (scan, {"conv_kwargs": {"stride": [1, 1]}}, "one entry per layer, got .*stride 2"),
        (scan, {"conv_activation": "tanh"}, "conv_activation: unknown 'tanh'"),
        (scan, {"pool_class": "MeanPool"}, "did you mean 'SpatialMeanPool'"),
        (scan, {"pool_class": "SpatialSoftmax", "conv_kwargs": layers([8, 4, 2], [4, 4, 2])}, "single position after"),
        (scan, {"conv_kwargs": layers([8, 4, 2], [64, 1, 1], [0, 2, 0])}, "use only 8 of the 40 beams"),
        (scan, {"conv_kwargs": layers([2], [5])}, "use only 16 of the 40 beams"),
        (scan, {"conv_kwargs": layers([2], [50])}, "use only 2 of the 40 beams"),
        (partial(ScanCore, (1, 7)), {}, "7 beams is too short"),
    ],
)  # fmt: skip
def test_refusals(kind, options, message):
    with pytest.raises(ConfigError, match=message):
        kind(**options)
