"""Linear layers in blocks give what torch's give, and follow their weights."""

import copy

import pytest
import torch
from torch import nn

from imitate.models import packed_linear as module
from imitate.models.packed_linear import PackedLinear, pack_linears

INPUTS = [(1, 512), (3, 512), (2, 10, 512), (100, 512), (0, 512)]


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(512, 256), nn.ReLU(), nn.ModuleDict({"a": nn.Linear(256, 256, bias=False)})["a"],
        nn.Linear(256, 8),
    )  # fmt: skip


@pytest.mark.parametrize("shape", INPUTS, ids=str)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str
)
def test_large_layers_are_replaced_and_give_the_same(shape, dtype, tolerance, monkeypatch):
    net = make_net()
    packed = copy.deepcopy(net)
    pack_linears(packed, dtype)
    kinds = [type(layer) for layer in packed if not isinstance(layer, nn.ReLU)]
    assert kinds == [PackedLinear, PackedLinear, nn.Linear]  # the last has 2,048 weights
    assert packed.state_dict().keys() == net.state_dict().keys()
    x = torch.randn(shape)
    plain, linear = [], nn.functional.linear
    with torch.inference_mode():
        wanted = net(x)
        monkeypatch.setattr(
            module.F, "linear", lambda x, *rest: plain.append(len(rest[0])) or linear(x, *rest)
        )
        y = packed(x)
    torch.testing.assert_close(y, wanted, atol=tolerance, rtol=0)
    assert y.dtype is torch.float32
    # Blocks are for 2 to 64 rows, in bfloat16 for 1 too; the last layer, with weights of 8 rows, is torch's own.
    few = (1 if dtype is torch.bfloat16 else 2) <= x.numel() // 512 <= 64
    assert plain == ([8] if few else [256, 256, 8])


def test_bf16_is_used_for_one_row_too():
    net = make_net()
    packed = copy.deepcopy(net)
    pack_linears(packed, torch.bfloat16)
    x = torch.randn(1, 512)
    with torch.no_grad():
        difference = (packed(x) - net(x)).abs().max()
    assert 0 < difference < 0.02


def test_changed_weights_are_seen():
    net = make_net()
    pack_linears(net)
    x = torch.randn(4, 512)
    with torch.no_grad():
        net(x)
        net[0].weight.mul_(0.5)
        expected = nn.functional.linear(x, net[0].weight, net[0].bias)
        torch.testing.assert_close(net[0](x), expected, atol=1e-5, rtol=0)
        net[0].weight.data = torch.ones(256, 512)
        expected = x.sum(1, keepdim=True) + net[0].bias
        torch.testing.assert_close(net[0](x), expected, atol=1e-3, rtol=0)


def test_gradients_are_those_of_the_layer():
    net = make_net()
    pack_linears(net)
    before = net[0].weight.clone()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net(torch.randn(4, 512)).sum().backward()
    optimizer.step()
    assert not torch.equal(net[0].weight, before)


def test_without_onednn_nothing_is_replaced(monkeypatch):
    monkeypatch.setattr(module, "_available", lambda: False)
    net = make_net()
    pack_linears(net)
    assert type(net[0]) is nn.Linear
