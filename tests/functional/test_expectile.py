import math

import pytest
import torch

from imitate.functional.expectile import advantage_weights, expectile_loss


def test_expectile_loss_by_hand():
    error = torch.tensor([2.0, -2.0, 0.0, -0.5])
    torch.testing.assert_close(expectile_loss(error, 0.9), torch.tensor([3.6, 0.4, 0.0, 0.025]))
    torch.testing.assert_close(expectile_loss(error, 0.5), error.square() / 2)


@pytest.mark.parametrize("expectile", [0.5, 0.7, 0.9])
def test_its_minimum_is_the_expectile(expectile):
    """Of 0 and 1 alike often: tau (1 - v) = (1 - tau) v, so v = tau."""
    values = torch.linspace(0, 1, 1001)
    targets = torch.tensor([0.0, 1.0])
    losses = expectile_loss(targets - values[:, None], expectile).mean(-1)
    assert float(values[losses.argmin()]) == pytest.approx(expectile, abs=1e-3)


def test_weights_by_hand():
    advantage = torch.tensor([0.0, 1.0, -1.0, 10.0], requires_grad=True)
    weights = advantage_weights(advantage, temperature=2.0)
    expected = [1.0, math.exp(0.5), math.exp(-0.5), math.exp(5.0)]
    torch.testing.assert_close(weights, torch.tensor(expected))
    assert not weights.requires_grad


def test_clips():
    advantage = torch.tensor([1.0, 10.0])
    assert advantage_weights(advantage, 1.0, max_weight=100.0)[1] == 100.0
    clipped = advantage_weights(advantage, 1.0, max_advantage=2.0)
    torch.testing.assert_close(clipped, torch.tensor([math.e, math.exp(2.0)]))
