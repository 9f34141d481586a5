"""Colours: numbers worked out by hand, and torchvision's."""

import colorsys
import itertools

import pytest
import torch

from imitate.models.randomizers import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    grey,
)


def image(*pixels):
    """(1, 3, 1, N) from N pixels (red, green, blue)."""
    return torch.tensor(pixels).T.reshape(1, 3, 1, -1)


def pixels(images):
    return [pytest.approx(p, abs=2e-6) for p in images[0, :, 0].T.tolist()]


def amount(*values):
    return torch.tensor(values)


def test_grey_by_hand():
    assert pixels(grey(image((1.0, 0.0, 0.0), (0.2, 0.4, 0.6)))) == [[0.2989], [0.36298]]


def test_brightness_by_hand():
    out = adjust_brightness(image((0.2, 0.4, 0.8)), amount(1.5))
    assert pixels(out) == [[0.3, 0.6, 1.0]]  # 1.2 is cut


def test_contrast_by_hand():
    # Greys 0 and 0.9999 (the weights of the colours add up to 0.9999), mean 0.49995; half way to it.
    out = adjust_contrast(image((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)), amount(0.5))
    assert pixels(out) == [[0.249975] * 3, [0.749975] * 3]
    # Twice as far from it: -0.49995 and 1.50005, which are cut.
    out = adjust_contrast(image((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)), amount(2.0))
    assert pixels(out) == [[0.0] * 3, [1.0] * 3]


def test_saturation_by_hand():
    x = image((0.2, 0.4, 0.6))  # grey 0.36298
    assert pixels(adjust_saturation(x, amount(0.0))) == [[0.36298] * 3]
    assert pixels(adjust_saturation(x, amount(2.0))) == [[0.03702, 0.43702, 0.83702]]


def test_hue_by_hand():
    third = amount(1 / 3)
    primaries = image((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.5, 0.5, 0.5))
    assert pixels(adjust_hue(primaries, third)) == [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0.5] * 3]
    assert pixels(adjust_hue(image((1.0, 0.0, 0.0)), amount(-1 / 6))) == [[1, 0, 1]]
    assert pixels(adjust_hue(image((1.0, 0.0, 0.0)), amount(1 / 12))) == [[1, 0.5, 0]]


def test_hue_is_that_of_colorsys():
    colours = list(itertools.product([0.0, 0.3, 0.75, 1.0], repeat=3))
    for turn in (-0.5, -0.21, 0.0, 0.1, 0.43):
        expected = []
        for colour in colours:
            hue, saturation, value = colorsys.rgb_to_hsv(*colour)
            expected.append(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value))
        assert pixels(adjust_hue(image(*colours), amount(turn))) == [list(e) for e in expected]


# torchvision 0.28's adjust_*, each by 0.7, hue by -0.2, on pixels (0.9, 0.2, 0.4) and (0.1, 0.6, 0.5).
TORCHVISION = {
    "adjust_brightness": [[0.63, 0.14, 0.28], [0.07, 0.42, 0.35]],
    "adjust_contrast": [[0.760665, 0.270665, 0.410665], [0.200665, 0.550665, 0.480665]],
    "adjust_saturation": [[0.759603, 0.269603, 0.409603], [0.201727, 0.551727, 0.481727]],
    "adjust_hue": [[0.56, 0.2, 0.9], [0.3, 0.6, 0.1]],
}


@pytest.mark.parametrize(
    ("change", "by"),
    [
        (adjust_brightness, 0.7),
        (adjust_contrast, 0.7),
        (adjust_saturation, 0.7),
        (adjust_hue, -0.2),
    ],
)
def test_numbers_of_torchvision(change, by):
    x = image((0.9, 0.2, 0.4), (0.1, 0.6, 0.5))
    assert pixels(change(x, amount(by))) == TORCHVISION[change.__name__]


@pytest.mark.parametrize(
    "change", [adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue]
)
def test_each_image_by_its_own_amount_and_in_place(change):
    torch.manual_seed(0)
    x, by = torch.rand(3, 3, 5, 4), amount(0.3, 0.0, -0.4) + (change is not adjust_hue)
    kept = x.clone()
    out = change(x, by)
    assert torch.equal(x, kept)
    for i in range(3):
        torch.testing.assert_close(out[i : i + 1], change(x[i : i + 1], by[i : i + 1]))
    last = x.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(change(last, by), out)
    assert change(x, by, out=x) is x
    torch.testing.assert_close(x, out, rtol=0, atol=0)
    assert not torch.equal(out[0], kept[0])
    torch.testing.assert_close(out[1], kept[1], atol=2e-6, rtol=0)
