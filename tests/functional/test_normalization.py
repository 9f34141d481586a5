"""Offsets and scales, worked out by hand."""

import torch

from imitate.functional import normalization


def test_mean_std_with_floor():
    offset, scale = normalization.mean_std_with_floor(
        torch.tensor([3.0, -1.0]), torch.tensor([2.0, 0.001])
    )
    assert offset.tolist() == [3.0, -1.0]
    assert scale.tolist() == [2.0, 0.01]


def test_mean_std_unless_constant():
    std = torch.tensor([2.0, 1e-5, 9e-7, 0.0], dtype=torch.float64)
    offset, scale = normalization.mean_std_unless_constant(torch.full((4,), 5.0), std)
    assert offset.tolist() == [5.0] * 4
    assert scale.tolist() == [2.0, 1e-5, 1.0, 1.0]


def test_min_max_puts_the_ends_at_the_limit():
    low, high = torch.tensor([-2.0, 1.0, 4.0, 0.0]), torch.tensor([4.0, 1.0, 4.00009, 0.0002])
    offset, scale = normalization.min_max(low, high, limit=0.5)
    torch.testing.assert_close(scale, torch.tensor([6.0, 1.0, 1.0, 0.0002]).double())
    torch.testing.assert_close(offset, torch.tensor([1.0, 1.0, 4.000045, 0.0001]).double())
    torch.testing.assert_close((high[0] - offset[0]) / scale[0], torch.tensor(0.5).double())
    torch.testing.assert_close((low[0] - offset[0]) / scale[0], torch.tensor(-0.5).double())
