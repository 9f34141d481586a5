"""Linear layers and MLPs: numbers worked out by hand."""

import copy

import pytest
import torch
from torch import nn

from imitate.functional import kernels
from imitate.functional.kernels import FastLinear, PackedLinear, has_int8, pack_linears
from imitate.models.mlp import MLP, FullPrecisionLinear, MultiHeadMLP
from imitate.models.precision import CPU_COMPUTES_BF16


def test_relu_follows_the_last_layer_too():
    net = MLP(2, (2, 1))
    with torch.no_grad():
        net.layers[0].weight.copy_(torch.tensor([[1.0, 1.0], [-1.0, 0.0]]))
        net.layers[0].bias.copy_(torch.tensor([0.0, 1.0]))
        net.layers[1].weight.copy_(torch.tensor([[2.0, -3.0]]))
        net.layers[1].bias.copy_(torch.tensor([0.5]))
    # (1, 2): hidden (3, 0), out 6.5. (-4, 1): hidden (0, 5), out -14.5 before the ReLU.
    assert net(torch.tensor([[1.0, 2.0], [-4.0, 1.0]])).tolist() == [[6.5], [0.0]]
    assert net.output_dim == 1


def test_no_layers_is_the_identity():
    net = MLP(5, ())
    x = torch.randn(3, 2, 5)
    assert net(x) is x and net.output_dim == 5
    assert list(net.parameters()) == []


def test_activation_can_be_chosen():
    net = MLP(1, (1,), activation=torch.tanh)
    with torch.no_grad():
        net.layers[0].weight.fill_(1.0)
        net.layers[0].bias.fill_(0.0)
    torch.testing.assert_close(net(torch.tensor([[-2.0]])), torch.tensor([[-2.0]]).tanh())


def test_heads_are_linear_maps_of_the_same_features():
    net = MultiHeadMLP(3, (4,), {"mean": 2, "scale": 5})
    x = torch.randn(7, 2, 3)
    out = net(x)
    assert (out["mean"].shape, out["scale"].shape) == ((7, 2, 2), (7, 2, 5))
    torch.testing.assert_close(out["scale"], net.heads["scale"](net.mlp(x)))


def test_dropout_acts_in_training_alone():
    torch.manual_seed(0)
    mlp = MLP(4, (1000,), dropout=0.25)
    x = torch.randn(1, 4)
    mlp.eval()
    kept = mlp(x)
    assert torch.equal(kept, mlp(x))
    mlp.train()
    dropped = mlp(x)
    alive = kept > 0
    assert float((dropped[alive] == 0).float().mean()) == pytest.approx(0.25, abs=0.05)
    survivors = alive & (dropped > 0)
    torch.testing.assert_close(dropped[survivors], kept[survivors] / 0.75)


needs_onednn = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="a torch with oneDNN"
)


@pytest.fixture
def faster(monkeypatch):
    monkeypatch.setattr(kernels, "onednn_is_faster", lambda: True)


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(300, 200), nn.ReLU(inplace=True), nn.ModuleDict({"a": nn.Linear(200, 150)})["a"],
        FullPrecisionLinear(150, 8),
    )  # fmt: skip


@needs_onednn
def test_training_is_the_same_up_to_rounding(faster):
    net = make_net()
    fast = copy.deepcopy(net)
    kernels.with_fast_linears(fast)
    kinds = [type(layer) for layer in fast if not isinstance(layer, nn.ReLU)]
    assert kinds == [FastLinear, FastLinear, FullPrecisionLinear]  # it has its own forward pass
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
    assert (fast[0].weight - make_net()[0].weight).abs().max() > 1e-4


@needs_onednn
def test_parameters_are_shared_and_the_mode_is_kept(faster):
    net = make_net().eval()
    weight = net[0].weight
    kernels.with_fast_linears(net)
    assert net[0].weight is weight and not net[0].training


@needs_onednn
@pytest.mark.filterwarnings("ignore")  # torch calls this function deprecated
def test_hooks_stay_as_of_a_spectral_norm(faster):
    net = nn.Sequential(nn.utils.spectral_norm(nn.Linear(256, 128)))
    before = list(net.state_dict())
    kernels.with_fast_linears(net)
    assert type(net[0]) is FastLinear
    assert list(net.state_dict()) == before
    net(torch.randn(200, 256)).sum().backward()
    assert net[0].weight_orig.grad is not None


@needs_onednn
def test_elsewhere_nothing_is_replaced(monkeypatch):
    monkeypatch.setattr(kernels, "onednn_is_faster", lambda: False)
    net = make_net()
    kernels.with_fast_linears(net)
    assert type(net[0]) is nn.Linear


needs_int8 = pytest.mark.skipif(not has_int8(), reason="an x86 processor")
needs_bf16 = pytest.mark.skipif(not CPU_COMPUTES_BF16, reason="a processor with AVX-512 or bf16")
DTYPES = [
    (torch.float32, 1e-5),
    pytest.param(torch.bfloat16, 2e-2, marks=needs_bf16),
    pytest.param(torch.int8, 3e-2, marks=needs_int8),
]

INPUTS = [(1, 512), (3, 512), (2, 10, 512), (100, 512), (0, 512)]


def make_packed_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(512, 256), nn.ReLU(), nn.ModuleDict({"a": nn.Linear(256, 256, bias=False)})["a"],
        nn.Linear(256, 8),
    )  # fmt: skip


@pytest.mark.parametrize("shape", INPUTS, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES, ids=str)
def test_large_layers_are_replaced_and_give_the_same(shape, dtype, tolerance, monkeypatch):
    net = make_packed_net()
    packed = copy.deepcopy(net)
    pack_linears(packed, dtype)
    kinds = [type(layer) for layer in packed if not isinstance(layer, nn.ReLU)]
    assert kinds == [PackedLinear, PackedLinear, nn.Linear]  # the last has 2,048 weights
    assert packed.state_dict().keys() == net.state_dict().keys()
    x = torch.randn(shape)
    plain, linear = [], nn.functional.linear
    monkeypatch.setattr(kernels, "onednn_is_faster", lambda: False)
    with torch.inference_mode():
        wanted = net(x)
        monkeypatch.setattr(
            kernels.F, "linear", lambda x, *rest: plain.append(len(rest[0])) or linear(x, *rest)
        )
        y = packed(x)
    torch.testing.assert_close(y, wanted, atol=tolerance, rtol=0)
    assert y.dtype is torch.float32
    # Blocks are for 2 to 64 rows, in fewer digits for 1 too; the last layer, with weights of 8 rows, is torch's own.
    few = (2 if dtype is torch.float32 else 1) <= x.numel() // 512 <= 64
    assert plain == ([8] if few else [256, 256, 8])


@needs_int8
def test_int8_rounds_each_row_of_weights_and_the_inputs_of_a_call(monkeypatch):
    monkeypatch.setattr(kernels, "FEWEST_WEIGHTS", 1)
    # Inputs from 0 to the number of steps and weights -127 to 127 are whole steps already: nothing is lost. A second
    # row of weights of another size has its own steps, so it is as exact.
    steps = 127 if kernels.needs_reduced_range() else 255
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
    net = make_packed_net()
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
    net = make_packed_net()
    pack_linears(net)
    before = net[0].weight.clone()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net(torch.randn(4, 512)).sum().backward()
    optimizer.step()
    assert not torch.equal(net[0].weight, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_layers_that_have_acted_can_be_copied_and_copies_follow_their_own_weights(dtype):
    net = make_packed_net()
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
    net, called = make_packed_net(), []
    net[0].register_forward_hook(lambda *_: called.append(0))
    nn.utils.spectral_norm(net[2])
    before = list(net.state_dict())
    pack_linears(net)
    assert list(net.state_dict()) == before
    assert [type(net[0]), type(net[2])] == [PackedLinear, nn.Linear]
    net(torch.randn(4, 512))
    assert called == [0]


@pytest.mark.parametrize("name", ["_available", "switched_on"])
def test_without_onednn_or_the_switch_nothing_is_replaced(name, monkeypatch):
    monkeypatch.setattr(kernels, name, lambda: False)
    net = make_packed_net()
    pack_linears(net)
    assert type(net[0]) is nn.Linear
