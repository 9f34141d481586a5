"""ResNet trunks: torchvision's names and numbers, normalization layers, FiLM, frozen weights."""

import pytest
import torch
from torch import nn

from imitate.errors import ConfigError
from imitate.models.resnet import (
    ChannelGroupNorm,
    CoordConv2d,
    FiLM,
    FrozenBatchNorm2d,
    ResNet18Conv,
    ResNet18ConvFiLM,
    ResNet34Conv,
    ResNet50Conv,
    ResNet50ConvFiLM,
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def names_of_torchvision(counts, convolutions):
    """Keys of torchvision's state_dict without its last layer, put together from the paper's table."""
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    names = ["conv1.weight", *(f"bn1.{n}" for n in norm)]
    for layer, count in enumerate(counts, start=1):
        for block in range(count):
            stem = f"layer{layer}.{block}"
            for i in range(1, convolutions + 1):
                names += [f"{stem}.conv{i}.weight", *(f"{stem}.bn{i}.{n}" for n in norm)]
            if block == 0 and (layer > 1 or convolutions == 3):
                names += [
                    f"{stem}.downsample.0.weight",
                    *(f"{stem}.downsample.1.{n}" for n in norm),
                ]
    return names


# Parameters as torchvision's models have them, less their last layers.
@pytest.mark.parametrize(
    ("kind", "counts", "convolutions", "parameters"),
    [
        (ResNet18Conv, (2, 2, 2, 2), 2, 11_689_512 - 513_000),
        (ResNet34Conv, (3, 4, 6, 3), 2, 21_797_672 - 513_000),
        (ResNet50Conv, (3, 4, 6, 3), 3, 25_557_032 - 2_049_000),
    ],
)
def test_torchvisions_weights(kind, counts, convolutions, parameters):
    trunk = kind()
    assert list(trunk.state_dict()) == names_of_torchvision(counts, convolutions)
    assert sum(p.numel() for p in trunk.parameters()) == parameters


def waves(trunk):
    """Weights that are a formula of their names, so that a figure can be taken elsewhere."""
    with torch.no_grad():
        for k, (name, value) in enumerate(sorted(trunk.state_dict().items())):
            if name.endswith("num_batches_tracked"):
                continue
            wave = torch.cos(torch.arange(value.numel(), dtype=torch.float64) * 1.7 + k)
            if name.endswith("running_var"):
                wave = 1 + 0.5 * wave
            elif name.endswith(("running_mean", "bias")):
                wave = 0.1 * wave
            elif value.dim() == 1:
                wave = 1 + 0.2 * wave
            else:
                wave = wave * (2.0 / value[0].numel()) ** 0.5
            value.copy_(wave.view(value.shape))


# torchvision 0.28 with these weights on this input: two of the features, and the mean of all.
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (ResNet18Conv, (0.7787439, 0.1781414, 0.9810058)),
        (ResNet34Conv, (0.0, 0.0129603, 1.1586821)),
        (ResNet50Conv, (0.0, 4.3058596, 5.0340347)),
    ],
)
def test_torchvisions_numbers(kind, expected):
    trunk = kind().eval()
    waves(trunk)
    wave = torch.sin(torch.arange(2 * 3 * 64 * 64, dtype=torch.float64) * 0.37)
    with torch.no_grad():
        out = trunk((wave.float().view(2, 3, 64, 64) + 1) / 2)
    assert out.shape == (2, *trunk.output_shape((3, 64, 64)))
    seen = (out[0, 5, 0, 0].item(), out[1, 100, 1, 1].item(), out.mean().item())
    assert seen == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_first_convolution():
    assert ResNet18Conv(1).conv1.weight.shape == (64, 1, 7, 7)
    trunk = ResNet18Conv(1, input_coord_conv=True)
    assert isinstance(trunk.conv1, CoordConv2d)
    assert trunk.conv1.weight.shape == (64, 3, 7, 7)


def test_group_norm_has_groups_of_16_channels_by_hand():
    norm = ChannelGroupNorm(32)
    x = torch.randn(2, 32, 3, 5) * 4 + 7
    group = x[1, 16:]
    expected = (group - group.mean()) / (group.var(correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(norm(x)[1, 16:], expected)
    trunk = ResNet18Conv(default_norm="group")
    norms = [m for m in trunk.modules() if isinstance(m, nn.GroupNorm)]
    assert (len(norms), norms[0].num_groups, norms[-1].num_groups) == (20, 4, 32)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in trunk.modules())
    assert {n for n in trunk.state_dict() if "running" in n} == set()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, nn.BatchNorm2d),
        ({"default_norm": "group"}, ChannelGroupNorm),
        ({"default_norm": "group", "norm": "batch"}, nn.BatchNorm2d),
        ({"norm": "none"}, nn.Identity),
        ({"default_norm": "group", "pretrained": "w.pth"}, FrozenBatchNorm2d),
        ({"pretrained": "w.pth"}, nn.BatchNorm2d),
        ({"norm": "group", "pretrained": "w.pth"}, ChannelGroupNorm),
    ],
)
def test_choice_of_normalization(options, kind):
    trunk = ResNet18Conv(**options, load_pretrained=False)
    assert type(trunk.layer4[1].bn2) is type(trunk.bn1) is kind
    assert trunk.train()(torch.rand(2, 3, 40, 40)).isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "layer"}, "norm: unknown 'layer'"),
        ({"norm": "none", "pretrained": "w.pth"}, "norm is 'none', but pretrained"),
        ({"lr_scale": 0}, "lr_scale is 0; expected more than 0"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ConfigError, match=message):
        ResNet18Conv(**options)


def test_imagenet_normalization_by_hand():
    plain = ResNet18Conv(5).eval()
    normalizing = ResNet18Conv(5, imagenet_normalization=True).eval()
    normalizing.load_state_dict(plain.state_dict())  # it has no names of its own
    x = torch.rand(2, 5, 40, 40)
    mean = torch.tensor([0.485, 0.456, 0.406, 0.0, 0.0]).view(5, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225, 1.0, 1.0]).view(5, 1, 1)
    torch.testing.assert_close(normalizing(x), plain((x - mean) / std))
    assert ResNet18Conv(pretrained="w.pth", load_pretrained=False).normalizes
    assert not ResNet18Conv(
        pretrained="w.pth", imagenet_normalization=False, load_pretrained=False
    ).normalizes
    assert not ResNet18Conv(1, pretrained="w.pth", load_pretrained=False).normalizes


def test_a_frozen_trunk_does_not_change():
    trunk = ResNet18Conv(pretrained="w.pth", freeze=True, load_pretrained=False)
    before = {name: value.clone() for name, value in trunk.state_dict().items()}
    net = nn.Sequential(trunk, nn.Flatten(), nn.LazyLinear(2)).train()
    x = torch.rand(4, 3, 40, 40)
    out = net(x)
    assert not trunk(x).requires_grad
    out.sum().backward()
    assert all(p.grad is None for p in trunk.parameters())
    assert net[2].weight.grad is not None
    assert all(torch.equal(before[name], value) for name, value in trunk.state_dict().items())
    assert not any(module.training for module in trunk.modules())
    assert torch.equal(trunk(x), trunk.train()(x))


def test_freezing_random_weights_is_told():
    with pytest.warns(UserWarning, match="freeze is true without pretrained"):
        ResNet18Conv(freeze=True)


def test_film_by_hand():
    film = FiLM(1, 2)
    with torch.no_grad():
        film.lang_proj.weight.copy_(torch.tensor([[1.0], [2.0], [3.0], [-4.0]]))  # beta, then gamma
    x = torch.tensor([10.0, 20.0]).view(1, 2, 1, 1)
    out = film(x, torch.tensor([[0.5]]))
    assert out.flatten().tolist() == [0.5 + 2.5 * 10, 0.0]  # 1 - 1 x 20 is cut


def test_a_trunk_with_film_reads_the_language():
    trunk = ResNet18ConvFiLM(language_dim=3).eval()
    assert [film.lang_proj.out_features for film in trunk.film] == [
        *(2 * c for c in (64, 64, 128, 128, 256, 256, 512, 512))
    ]
    for film in trunk.film:
        nn.init.normal_(film.lang_proj.weight, std=0.1)
    x = torch.rand(1, 3, 40, 40).expand(2, -1, -1, -1)
    out = trunk(x, torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    assert not torch.allclose(out[0], out[1])
    assert len(ResNet50ConvFiLM(language_dim=3).film) == 16


def test_film_learns_in_a_frozen_trunk():
    trunk = ResNet18ConvFiLM(language_dim=3, pretrained="w.pth", freeze=True, load_pretrained=False)
    trunk.train()(torch.rand(2, 3, 40, 40), torch.randn(2, 3)).sum().backward()
    learns = {name for name, p in trunk.named_parameters() if p.grad is not None}
    assert learns == {name for name, _ in trunk.named_parameters() if name.startswith("film.")}
    assert trunk.film[0].lang_proj.weight.grad.abs().sum() > 0
