"""Dropout on a CPU: rates, scale, independence, gradients; attention beside torch's."""

import pytest
import torch
from torch import nn

from imitate.models import dropout
from imitate.models.dropout import Dropout, attend, drop


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_values_are_dropped_at_the_rate_and_the_expectation_stays(p):
    torch.manual_seed(0)
    dropped = drop(torch.full((400, 1001), 3.0), p)
    zeros = dropped == 0
    assert zeros.float().mean() == pytest.approx(p, abs=5 * (p * (1 - p) / dropped.numel()) ** 0.5)
    torch.testing.assert_close(
        dropped[~zeros].unique(), torch.tensor([3.0 / (1 - p)]), rtol=2e-4, atol=0
    )
    assert dropped.mean() == pytest.approx(3.0, rel=0.02)


def test_neighbours_are_dropped_independently():
    torch.manual_seed(0)
    zeros = (drop(torch.ones(400_000), 0.5) == 0).float() - 0.5
    for distance in (1, 2, 3, 4, 5):
        product = (zeros[distance:] * zeros[:-distance]).mean() * 4
        assert abs(product) < 5 / 400_000**0.5


def test_gradients_are_those_of_what_is_kept():
    torch.manual_seed(0)
    x = torch.rand(7, 9).add_(1.0).requires_grad_()
    y = drop(x.T, 0.5)
    y.sum().backward()
    torch.testing.assert_close(x.grad.T * x.detach().T, y.detach())
    assert 0 < int((y == 0).sum()) < y.numel()


def test_draws_follow_the_seed():
    def drawn(seed):
        torch.manual_seed(seed)
        return drop(torch.ones(100), 0.5)

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_evaluation_drops_nothing():
    x, layer = torch.randn(50), Dropout(0.5)
    assert (layer(x) == 0).any()
    assert torch.equal(layer.eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_torchs_but_for_what_is_dropped(masked, monkeypatch):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 4, dropout=0.3, batch_first=True)
    nn.init.normal_(layer.in_proj_bias)
    query, key, value = (torch.randn(3, steps, 16) for steps in (5, 7, 7))
    mask = torch.rand(3, 7) < 0.6 if masked else None
    rates = []

    def nothing(x, p):
        rates.append(p)
        return x

    monkeypatch.setattr(dropout, "drop", nothing)
    trained = attend(layer, query, key, value, mask)
    expected = attend(layer.eval(), query, key, value, mask)
    torch.testing.assert_close(trained, expected, rtol=1e-5, atol=1e-5)
    assert rates == [0.3]
    if masked:
        assert not torch.allclose(expected, attend(layer, query, key, value), atol=1e-2)


def test_attention_drops_weights_in_training():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 4, dropout=0.3, batch_first=True)
    x = torch.randn(3, 5, 16)
    assert not torch.allclose(attend(layer, x, x, x), attend(layer, x, x, x), atol=1e-3)
