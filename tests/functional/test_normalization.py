"""Offsets and scales, worked out by hand."""

import pytest
import torch

from imitate.functional import normalization


@pytest.mark.parametrize(
    ("std", "scale"),
    [
        ([2.0, 0.001, 0.0], [2.0, 0.01, 0.01]),
        (
            [2e-4, 1e-5, 0.0],
            [2e-4, 2e-5, 0.01],
        ),  # all in micrometres: the floor is a tenth of the largest
    ],
)
def test_mean_std_with_floor(std, scale):
    offset, found = normalization.mean_std_with_floor(
        torch.tensor([3.0, -1.0, 0.5]), torch.tensor(std)
    )
    assert offset.tolist() == [3.0, -1.0, 0.5]
    torch.testing.assert_close(found, torch.tensor(scale).double())


def test_rounding_is_relative_to_the_largest_value_of_the_key():
    # A millionth of 5 + 2.
    std = torch.tensor([2.0, 1e-5, 6.9e-6, 0.0], dtype=torch.float64)
    offset, scale = normalization.mean_std_unless_constant(torch.full((4,), 5.0), std)
    assert offset.tolist() == [5.0] * 4
    assert scale.tolist() == [2.0, 1e-5, 1.0, 1.0]
    tiny = normalization.mean_std_unless_constant(torch.zeros(2), torch.tensor([3e-9, 2e-15]))
    assert tiny[1].tolist() == [pytest.approx(3e-9), 1.0]


@pytest.mark.parametrize("unit", [1.0, 4e-5, 1e5])
def test_min_max_puts_the_ends_at_the_limit(unit):
    """In metres, in units of 40 micrometres, in Pascals."""
    low = torch.tensor([-2.0, 1.0, 4.0, 0.0], dtype=torch.float64) * unit
    high = torch.tensor([4.0, 1.0, 4.000003, 0.00001], dtype=torch.float64) * unit
    offset, scale = normalization.min_max(low, high, limit=0.5)
    wanted = torch.tensor([6.0 * unit, 1.0, 1.0, 0.00001 * unit]).double()
    torch.testing.assert_close(scale, wanted, rtol=1e-6, atol=0)
    torch.testing.assert_close(offset, (low + high) / 2)
    torch.testing.assert_close((high[0] - offset[0]) / scale[0], torch.tensor(0.5).double())
    torch.testing.assert_close((low[0] - offset[0]) / scale[0], torch.tensor(-0.5).double())


def test_quantiles_reach_no_farther_than_ten():
    zeros, ones = torch.zeros(4), torch.ones(4)
    # Spread evenly; a rare event of 50 beside 0.01; the same below; one that is 0 in all but a few steps.
    lower, upper = torch.tensor([-1.0, 0, 0, 0]), torch.tensor([1.0, 0.01, 0.01, 0])
    low, high = torch.tensor([-1.2, 0, -50, 0]), torch.tensor([1.2, 50, 0.01, 3.0])
    offset, scale = normalization.quantiles(lower, upper, low, high)
    torch.testing.assert_close(offset, torch.tensor([0.0, 0.005, 0.005, 0.0]).double())
    torch.testing.assert_close(scale, torch.tensor([1.0, 4.9995, 5.0005, 0.3]).double())
    assert normalization.quantiles(ones, ones, ones, ones)[1].tolist() == ones.tolist()
    assert normalization.quantiles(zeros, zeros, zeros, zeros)[1].tolist() == ones.tolist()


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
