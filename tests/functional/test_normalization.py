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


def test_actions_scaled_to_the_limit_stay_off_the_ends_of_tanh():
    assert normalization.ACTION_LIMIT == 0.999999
    low, high = torch.tensor([0.0]), torch.tensor([8.0])
    offset, scale = normalization.min_max(low, high, normalization.ACTION_LIMIT)
    ends = (torch.stack([low, high]).double() - offset) / scale
    assert ends.flatten().tolist() == [-0.999999, 0.999999]
    assert torch.isfinite(torch.atanh(ends.float())).all()


def test_the_limit_is_one_unless_it_is_said():
    # -2 .. 4: the middle 1, half the spread 3.
    offset, scale = normalization.min_max(torch.tensor([-2.0]), torch.tensor([4.0]))
    assert (offset.item(), scale.item()) == (1.0, 3.0)


def test_a_larger_limit_means_a_smaller_scale():
    _, scale = normalization.min_max(torch.tensor([0.0]), torch.tensor([8.0]), limit=2.0)
    assert scale.item() == 2.0


def test_a_dimension_as_wide_as_the_bound_of_constants_is_scaled():
    low, high = torch.tensor([0.0, 0.0]), torch.tensor([0.25, 0.125])
    assert normalization.min_max(low, high, constant=0.25)[1].tolist() == [0.125, 1.0]
    std = torch.tensor([0.25, 0.125])
    mean = torch.zeros(2)
    assert normalization.mean_std_unless_constant(mean, std, 0.25)[1].tolist() == [0.25, 1.0]
