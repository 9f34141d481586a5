"""The fast hyperbolic tangent against torch's in float64, with its first and second gradients."""

import pytest
import torch

from imitate.functional import activations
from imitate.functional.activations import LEAST_SIZE, tanh


@pytest.fixture(params=[True, False], ids=["numpy", "torch"])
def by_numpy(request, monkeypatch):
    monkeypatch.setattr(activations, "onednn_is_faster", lambda: request.param)
    return request.param


@pytest.mark.parametrize("scale", [1e-4, 1.0, 20.0])
@pytest.mark.parametrize("rows", [1, LEAST_SIZE // 8])
def test_tanh_and_its_gradients_are_those_of_float64(by_numpy, scale, rows):
    generator = torch.Generator().manual_seed(3)
    x = (torch.randn(rows, 8, generator=generator) * scale).requires_grad_()
    exact = x.detach().double().requires_grad_()
    for each, function in ((x, tanh), (exact, torch.tanh)):
        y = function(each)
        (slope,) = torch.autograd.grad((y * y.detach()).sum(), each, create_graph=True)
        (bend,) = torch.autograd.grad(slope.square().sum(), each)
        each.found = y, slope, bend
    for found, wanted in zip(x.found, exact.found, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)


def test_large_tensors_are_computed_by_numpy_and_others_by_torch(by_numpy, monkeypatch):
    calls = []
    original = activations._by_numpy
    monkeypatch.setattr(activations, "_by_numpy", lambda x: calls.append(x.shape) or original(x))
    tanh(torch.zeros(LEAST_SIZE))
    tanh(torch.zeros(LEAST_SIZE, requires_grad=True))
    tanh(torch.zeros(LEAST_SIZE - 1))
    tanh(torch.zeros(LEAST_SIZE, dtype=torch.float64))
    torch.func.vmap(tanh)(torch.zeros(2, LEAST_SIZE))
    assert len(calls) == (2 if by_numpy else 0)


def test_what_is_not_finite_stays_so(by_numpy):
    x = torch.zeros(LEAST_SIZE)
    x[:3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    y = tanh(x)
    assert y[0].isnan() and y[1] == 1.0 and y[2] == -1.0 and (y[3:] == 0).all()


def test_acting_in_inference_mode_and_strided_inputs(by_numpy):
    x = torch.randn(64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(tanh(x.t()), torch.tanh(x.t()))
