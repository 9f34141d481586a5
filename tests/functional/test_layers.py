"""Products by oneDNN are torch's own, with their gradients and the gradients of these."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from imitate.functional import kernels
from imitate.functional.kernels import FastLinear, linear, linears

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="a torch with oneDNN"
)


@pytest.fixture
def calls(monkeypatch):
    """Shapes of the matrices that oneDNN multiplies, whatever this processor is."""
    shapes = []
    product = kernels.onednn_product

    def counted(a, b, bias=None):
        shapes.append((tuple(a.shape), tuple(b.shape)))
        return product(a, b, bias)

    monkeypatch.setattr(kernels, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(kernels, "onednn_product", counted)
    return shapes


def tensors(*shape):
    torch.manual_seed(0)
    x = torch.randn(*shape, 256)
    return [t.requires_grad_() for t in (x, torch.randn(128, 256) / 16, torch.randn(128))]


@pytest.mark.parametrize("shape", [(128,), (4, 32), (2, 8, 8)], ids=str)
def test_values_and_gradients_of_both_orders_are_torchs(calls, shape):
    inputs = tensors(*shape)

    def everything(function):
        y = torch.relu_(function(*inputs))  # activations work in place on the result
        first = torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(g.square().mean() for g in first), inputs)
        return y, *first, *second

    for got, wanted in zip(everything(linear), everything(F.linear), strict=True):
        assert got.shape == wanted.shape
        scale = wanted.abs().max().item()
        torch.testing.assert_close(got, wanted, atol=2e-6 * scale, rtol=0)
    # The value, the gradients of rows and weights, and at least as many products for the gradients of those.
    assert calls[:3] == [
        ((128, 256), (128, 256)),
        ((128, 128), (256, 128)),
        ((128, 128), (256, 128)),
    ]
    assert len(calls) >= 6


def test_several_maps_at_once_are_torchs_too(calls):
    torch.manual_seed(0)
    shapes = (3, 176, 256), (3, 256, 192), (3, 192)
    inputs = [(torch.randn(*shape) / 16).requires_grad_() for shape in shapes]

    def everything(function):
        y = torch.relu(function(*inputs))
        first = torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(g.square().mean() for g in first), inputs)
        return y, *first, *second

    def batched(x, weight, bias):
        return torch.baddbmm(bias.unsqueeze(1), x, weight)

    for got, wanted in zip(everything(linears), everything(batched), strict=True):
        assert got.shape == wanted.shape
        scale = wanted.abs().max().item()
        torch.testing.assert_close(got, wanted, atol=2e-6 * scale, rtol=0)
    assert calls[:3] == [((176, 256), (192, 256))] * 3
    assert len(calls) >= 18
    calls.clear()
    few = torch.randn(3, 128, 256)  # more than oneDNN takes for a single map
    torch.testing.assert_close(linears(few, *inputs[1:]), batched(few, *inputs[1:]))
    assert not calls


@pytest.mark.parametrize("shape", [(64, 8), (64, 1), (63, 8), (64, 9)])
def test_maps_to_few_columns_are_torchs_too(shape):
    rows, columns = shape
    x, weight, bias = torch.randn(3, rows, 16), torch.randn(3, 16, columns), torch.randn(3, columns)
    expected = torch.baddbmm(bias.unsqueeze(1), x, weight)
    torch.testing.assert_close(linears(x, weight, bias), expected)


def test_without_gradients_the_value_is_the_same(calls):
    x, weight, bias = tensors(4, 32)
    wanted = F.linear(x, weight, bias)
    with torch.no_grad():
        torch.testing.assert_close(linear(x, weight, bias), wanted)
        strided = torch.randn(256, 128).t()
        torch.testing.assert_close(linear(strided, weight, bias), F.linear(strided, weight, bias))
        shifts = torch.randn(256)[::2], torch.ones(1).expand(128)
        for shift in shifts:
            torch.testing.assert_close(linear(x, weight, shift), F.linear(x, weight, shift))
    assert len(calls) == 4


def test_only_the_wanted_gradients_are_computed(calls):
    x, weight, bias = tensors(128)
    linear(x.detach(), weight, bias).sum().backward()
    assert len(calls) == 2
    assert x.grad is None
    linear(x, weight.detach(), None).sum().backward()
    assert len(calls) == 4


def test_small_and_foreign_products_are_torchs_own(calls, monkeypatch):
    x, weight, bias = tensors(128)
    linear(x[:127], weight, bias)  # a row less than LEAST_WORK
    linear(x.double(), weight.double(), bias.double())
    big = torch.randn(3, 2048), torch.randn(2048, 2048)
    linear(*big)  # so few rows are bound by reading the matrix
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight, bias).dtype is torch.bfloat16
    y = torch.vmap(lambda row: linear(row, weight, bias))(x.expand(2, 128, 256))
    torch.testing.assert_close(y[1], F.linear(x, weight, bias))
    layer = FastLinear(256, 128)
    with torch.enable_grad():  # as bundles are exported
        torch.jit.trace(layer, x.detach(), check_trace=False)
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mkldnn, "enabled", False)
        linear(x, weight, bias)
    assert not calls
    monkeypatch.setattr(kernels, "onednn_is_faster", lambda: False)
    linear(x, weight, bias)
    assert not calls


@pytest.mark.parametrize(
    ("capabilities", "faster"),
    [
        ({"cpu_name": "AMD EPYC", "avx512_f": True}, True),
        ({"cpu_name": "AMD EPYC", "avx512_f": False}, False),
        ({"cpu_name": "Intel(R) Xeon(R)", "avx512_f": True}, False),
        ({}, False),
    ],
    ids=str,
)
def test_the_processor_decides(monkeypatch, capabilities, faster):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert kernels.onednn_is_faster.__wrapped__() is faster
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert not kernels.onednn_is_faster.__wrapped__()  # torch then multiplies with another library
