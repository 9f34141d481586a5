"""Linear layers in blocks give what torch's give, and follow their weights."""

import copy

import pytest
import torch
from torch import nn

from imitate.functional import products
from imitate.models import packed_linear as module
from imitate.models.packed_linear import PackedLinear, has_int8, pack_linears
from imitate.models.precision import CPU_COMPUTES_BF16

needs_int8 = pytest.mark.skipif(not has_int8(), reason="an x86 processor")
needs_bf16 = pytest.mark.skipif(not CPU_COMPUTES_BF16, reason="a processor with AVX-512 or bf16")
DTYPES = [
    (torch.float32, 1e-5),
    pytest.param(torch.bfloat16, 2e-2, marks=needs_bf16),
    pytest.param(torch.int8, 3e-2, marks=needs_int8),
]

INPUTS = [(1, 512), (3, 512), (2, 10, 512), (100, 512), (0, 512)]


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(512, 256), nn.ReLU(), nn.ModuleDict({"a": nn.Linear(256, 256, bias=False)})["a"],
        nn.Linear(256, 8),
    )  # fmt: skip


@pytest.mark.parametrize("shape", INPUTS, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES, ids=str)
def test_large_layers_are_replaced_and_give_the_same(shape, dtype, tolerance, monkeypatch):
    net = make_net()
    packed = copy.deepcopy(net)
    pack_linears(packed, dtype)
    kinds = [type(layer) for layer in packed if not isinstance(layer, nn.ReLU)]
    assert kinds == [PackedLinear, PackedLinear, nn.Linear]  # the last has 2,048 weights
    assert packed.state_dict().keys() == net.state_dict().keys()
    x = torch.randn(shape)
    plain, linear = [], nn.functional.linear
    monkeypatch.setattr(products, "onednn_is_faster", lambda: False)
    with torch.inference_mode():
        wanted = net(x)
        monkeypatch.setattr(
            products.F, "linear", lambda x, *rest: plain.append(len(rest[0])) or linear(x, *rest)
        )
        y = packed(x)
    torch.testing.assert_close(y, wanted, atol=tolerance, rtol=0)
    assert y.dtype is torch.float32
    # Blocks are for 2 to 64 rows, in fewer digits for 1 too; the last layer, with weights of 8 rows, is torch's own.
    few = (2 if dtype is torch.float32 else 1) <= x.numel() // 512 <= 64
    assert plain == ([8] if few else [256, 256, 8])


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES[1:], ids=str)
def test_fewer_digits_are_used_for_one_row_too(dtype, tolerance):
    net = make_net()
    packed = copy.deepcopy(net)
    pack_linears(packed, dtype)
    x = torch.randn(1, 512)
    with torch.no_grad():
        difference = (packed(x) - net(x)).abs().max()
    assert 0 < difference < tolerance


@needs_int8
def test_int8_rounds_each_row_of_weights_and_the_inputs_of_a_call(monkeypatch):
    monkeypatch.setattr(module, "FEWEST_WEIGHTS", 1)
    # Inputs from 0 to the number of steps and weights -127 to 127 are whole steps already: nothing is lost. A second
    # row of weights of another size has its own steps, so it is as exact.
    steps = 127 if module.needs_reduced_range() else 255
    weight = torch.stack([torch.arange(-127.0, 128.0), 1e-3 * torch.arange(127.0, -128.0, -1.0)])
    layer = nn.Linear(255, 2)
    layer.weight.data, layer.bias.data = weight, torch.tensor([1.0, 2.0])
    x = 1.0 + torch.arange(255.0).remainder(steps)[None]  # its range always includes 0
    with torch.no_grad():
        wanted = nn.functional.linear(x, layer.weight, layer.bias)
        pack_linears(layer, torch.int8)
        torch.testing.assert_close(layer(x), wanted, rtol=1e-6, atol=0)
        # A step of the inputs is this part of the greatest: an input of 0.4 steps counts as 0.
        layer.weight.data = torch.ones(2, 255)
        x = torch.zeros(1, 255).index_fill(1, torch.tensor([0]), float(steps))
        x[0, 1:] = 0.4
        y = layer(x)
    torch.testing.assert_close(y, torch.tensor([[steps + 1.0, steps + 2.0]]), rtol=1e-6, atol=0)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_layers_that_have_acted_can_be_copied_and_copies_follow_their_own_weights(dtype):
    net = make_net()
    pack_linears(net, dtype)
    x = torch.randn(4, 512)
    with torch.no_grad():
        wanted = net(x)
        twin = copy.deepcopy(net)
        torch.testing.assert_close(twin(x), wanted)
        twin[0].weight.zero_()
        torch.testing.assert_close(twin[0](x), twin[0].bias.expand(4, 256))
        torch.testing.assert_close(net(x), wanted)


@pytest.mark.filterwarnings("ignore")  # torch calls this function deprecated
def test_hooks_stay_and_weights_that_a_hook_computes_are_not_copied():
    net, called = make_net(), []
    net[0].register_forward_hook(lambda *_: called.append(0))
    nn.utils.spectral_norm(net[2])
    before = list(net.state_dict())
    pack_linears(net)
    assert list(net.state_dict()) == before
    assert [type(net[0]), type(net[2])] == [PackedLinear, nn.Linear]
    net(torch.randn(4, 512))
    assert called == [0]


def test_without_onednn_nothing_is_replaced(monkeypatch):
    monkeypatch.setattr(module, "_available", lambda: False)
    net = make_net()
    pack_linears(net)
    assert type(net[0]) is nn.Linear
