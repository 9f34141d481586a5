"""Image encoders: pooling by hand, shapes, torchvision's weight names."""

import math

import pytest
import torch

from imitate.errors import ConfigError
from imitate.models.visual import (
    CoordConv2d,
    ResNet18Conv,
    ShallowConv,
    SpatialMeanPool,
    SpatialSoftmax,
    VisualCore,
    with_coordinates,
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


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


def test_coordinates_by_hand():
    x = with_coordinates(torch.zeros(2, 1, 2, 4))
    assert x.shape == (2, 3, 2, 4)
    assert x[1, 1].tolist() == [[0.0] * 4, [0.5] * 4]
    assert x[1, 2].tolist() == [[0.0, 0.25, 0.5, 0.75]] * 2
    conv = CoordConv2d(1, 1, kernel_size=1, bias=False)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([0.0, 10.0, 1.0]).view(1, 3, 1, 1))
    assert conv(torch.zeros(1, 1, 2, 4))[0, 0, 1].tolist() == [5.0, 5.25, 5.5, 5.75]


@pytest.mark.parametrize("size", [(76, 76), (84, 100), (33, 64)])
@pytest.mark.parametrize("kind", [ResNet18Conv, ShallowConv])
def test_output_shape_of_trunks(kind, size):
    trunk = kind(input_channel=3).eval()
    out = trunk(torch.rand(1, 3, *size))
    assert tuple(out.shape[1:]) == trunk.output_shape((3, *size))


def test_shallow_conv_heeds_its_output_channels():
    assert ShallowConv(1, output_channel=5)(torch.rand(1, 1, 8, 8)).shape == (1, 5, 4, 4)


def test_resnet_has_torchvisions_weights():
    # torchvision's resnet18: 11,689,512 parameters, 513,000 of them in its last layer.
    trunk = ResNet18Conv()
    assert sum(p.numel() for p in trunk.parameters()) == 11_689_512 - 513_000
    names = set(trunk.state_dict())
    assert len(names) == 120
    assert {
        "conv1.weight",
        "bn1.running_mean",
        "layer1.0.conv1.weight",
        "layer1.1.bn2.bias",
        "layer2.0.downsample.0.weight",
        "layer4.0.downsample.1.num_batches_tracked",
        "layer4.1.conv2.weight",
    } <= names
    assert "layer1.0.downsample.0.weight" not in names
    assert tuple(trunk.layer3[0].conv1.weight.shape) == (256, 128, 3, 3)
    assert trunk.layer3[0].conv1.stride == (2, 2)
    assert trunk.layer3[0].conv2.stride == (1, 1)


def test_residual_block_by_hand():
    # With zero weights in the last normalization a block is the ReLU of its shortcut.
    block = ResNet18Conv().layer1[0].eval()
    with torch.no_grad():
        block.bn2.weight.zero_()
        x = torch.randn(1, 64, 4, 4)
        torch.testing.assert_close(block(x), x.relu())


def test_resnet_options():
    assert ResNet18Conv(1, input_coord_conv=True).conv1.weight.shape == (64, 3, 7, 7)
    with pytest.raises(ConfigError, match="pretrained is true"):
        ResNet18Conv(pretrained=True)


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
        VisualCore((3, 32, 32), **kwargs)


def test_visual_core_gives_the_same_for_both_layouts_of_images():
    core = VisualCore((3, 40, 40)).eval()
    x = torch.rand(2, 3, 40, 40)
    last = x.to(memory_format=torch.channels_last)
    torch.testing.assert_close(core(last), core(x), atol=1e-5, rtol=1e-5)
