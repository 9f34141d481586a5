"""Positions and masks by hand."""

import math

import pytest
import torch

from imitate.errors import ConfigError
from imitate.models.attention import (
    causal_mask,
    head_dim,
    rotary_table,
    rotate,
    sinusoidal_positions,
)


def test_sinusoidal_positions_by_hand():
    # 4 features: frequencies 1 and 10000^(-1/2) = 0.01, sine and cosine in turn.
    expected = [math.sin(3), math.cos(3), math.sin(0.03), math.cos(0.03)]
    assert sinusoidal_positions(5, 4)[3].tolist() == pytest.approx(expected, abs=1e-6)


def test_rotation_by_hand():
    # Features (0, 2) turn by 2 radians at position 2, features (1, 3) by 0.02.
    x = torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    expected = [math.cos(2), -math.sin(0.02), math.sin(2), math.cos(0.02)]
    found = rotate(x, rotary_table(3, 4)[:, 2:])
    assert found.squeeze(0).tolist() == pytest.approx(expected, abs=1e-6)


def test_rotated_products_depend_on_the_distance_only():
    torch.manual_seed(0)
    q, k = torch.randn(8), torch.randn(8)
    table = rotary_table(40, 8)

    def product(i, j):
        turned = [rotate(x[None], table[:, n : n + 1]) for x, n in ((q, i), (k, j))]
        return (turned[0] * turned[1]).sum().item()

    assert product(5, 2) == pytest.approx(product(39, 36), abs=1e-4)
    assert product(5, 2) != pytest.approx(product(5, 3), abs=1e-2)


def test_causal_mask_by_hand():
    expected = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert causal_mask(4, 2).int().tolist() == expected


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: head_dim(10, 4), "4 heads do not divide 10"),
        (lambda: rotary_table(3, 5), "5 features per head; expected an even number"),
        (lambda: sinusoidal_positions(3, 5), "5 features; expected an even number"),
    ],
)
def test_impossible_sizes_are_refused(call, words):
    with pytest.raises(ConfigError, match=words):
        call()
