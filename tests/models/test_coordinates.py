"""Convolutions with coordinates."""

import torch

from imitate.models.coordinates import CoordConv2d, with_coordinates


def test_coordinates_by_hand():
    x = with_coordinates(torch.zeros(2, 1, 2, 4))
    assert x.shape == (2, 3, 2, 4)
    assert x[1, 1].tolist() == [[0.0] * 4, [0.5] * 4]
    assert x[1, 2].tolist() == [[0.0, 0.25, 0.5, 0.75]] * 2
    conv = CoordConv2d(1, 1, kernel_size=1, bias=False)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([0.0, 10.0, 1.0]).view(1, 3, 1, 1))
    assert conv(torch.zeros(1, 1, 2, 4))[0, 0, 1].tolist() == [5.0, 5.25, 5.5, 5.75]
