"""Activations equal torch's, with gradients too."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - its usual name

from imitate.functional.kernels import group_softmax, mish

X = torch.cat([torch.linspace(-100, 100, 4001), torch.tensor([0.0, 1e-6, 1e30])])


def test_mish_equals_torchs():
    with torch.no_grad():
        torch.testing.assert_close(mish(X), F.mish(X), rtol=1e-5, atol=1e-6)
    x = X.clone().requires_grad_()
    assert torch.equal(mish(x), F.mish(x))


@pytest.mark.parametrize("size", [2, 8])
def test_softmax_of_groups_equals_torchs(size):
    x = (100 * torch.randn(5, 16)).requires_grad_()
    found, expected = group_softmax(x, size), x.view(5, -1, size).softmax(-1).flatten(-2)
    torch.testing.assert_close(found, expected)
    weights = torch.randn(5, 16)
    gradients = [torch.autograd.grad((y * weights).sum(), x)[0] for y in (found, expected)]
    torch.testing.assert_close(*gradients)
