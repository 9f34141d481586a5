"""Linear layers with the faster products keep weights, names and results."""

import copy

import pytest
import torch
from torch import nn

from imitate.functional import products
from imitate.models import fast_linear
from imitate.models.fast_linear import FastLinear, with_fast_linears
from imitate.models.mlp import FullPrecisionLinear

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="a torch with oneDNN"
)


@pytest.fixture
def faster(monkeypatch):
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(fast_linear, "onednn_is_faster", lambda: True)


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(300, 200), nn.ReLU(inplace=True), nn.ModuleDict({"a": nn.Linear(200, 150)})["a"],
        FullPrecisionLinear(150, 8),
    )  # fmt: skip


def test_training_is_the_same_up_to_rounding(faster):
    net = make_net()
    fast = copy.deepcopy(net)
    with_fast_linears(fast)
    assert [type(layer) for layer in fast if not isinstance(layer, nn.ReLU)] == [
        FastLinear,
        FastLinear,
        FullPrecisionLinear,  # has its own forward pass
    ]
    assert list(fast.state_dict()) == list(net.state_dict())
    x, target = torch.randn(200, 300), torch.randn(200, 8)
    for each in (net, fast):
        optimizer = torch.optim.SGD(each.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (each(x) - target).square().mean().backward()
            optimizer.step()
    for got, wanted in zip(fast.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-6, rtol=0)
    start = make_net()[0].weight
    assert (fast[0].weight - start).abs().max() > 1e-4


def test_parameters_are_shared_and_the_mode_is_kept(faster):
    net = make_net().eval()
    weight = net[0].weight
    with_fast_linears(net)
    assert net[0].weight is weight
    assert not net[0].training


@pytest.mark.filterwarnings("ignore")  # torch calls this function deprecated
def test_hooks_stay_as_of_a_spectral_norm(faster):
    net = nn.Sequential(nn.utils.spectral_norm(nn.Linear(256, 128)))
    before = list(net.state_dict())
    with_fast_linears(net)
    assert type(net[0]) is FastLinear
    assert list(net.state_dict()) == before
    net(torch.randn(200, 256)).sum().backward()
    assert net[0].weight_orig.grad is not None


def test_elsewhere_nothing_is_replaced(monkeypatch):
    monkeypatch.setattr(fast_linear, "onednn_is_faster", lambda: False)
    net = make_net()
    with_fast_linears(net)
    assert type(net[0]) is nn.Linear
