"""Running moments are those of all rows."""

import torch

from imitate.models.moments import Moments


def test_moments_are_those_of_all_rows():
    rows = torch.randn(100, 3, generator=torch.Generator().manual_seed(0)) * 2 + 5
    moments = Moments(3)
    for part in rows.split([1, 60, 39]):
        moments.add(part)
    torch.testing.assert_close(moments.mean, rows.mean(0))
    torch.testing.assert_close(moments.std, rows.std(0, correction=0))
    assert Moments(2).std.tolist() == [1.0, 1.0]
