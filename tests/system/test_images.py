"""Units and layouts of images: exact limits of what counts as an image."""

import numpy as np
import pytest
import torch

from imitate.errors import UserError
from imitate.system.images import (
    given_array,
    image_divisor,
    image_layout,
    image_type,
    in_layout,
    nested_name,
)
from tests.refusals import refused


def test_arrays_with_masked_values_are_refused():
    assert given_array(np.ma.array([1, 2], mask=False)).tolist() == [1, 2]
    assert type(given_array(np.ma.array([1, 2]))) is np.ndarray and given_array(3).shape == ()
    with pytest.raises(ValueError, match="2 of its values are masked"):
        given_array(np.ma.array([[1, 2], [3, 4]], mask=[[0, 1], [1, 0]]))


def test_types():
    dtypes = (torch.uint8, *map(np.dtype, ("u1", "u2", "?", "f8")), torch.float16)
    kinds = ["uint8", "uint8", "integer", "integer", "float", "float"]
    assert [image_type(dtype) for dtype in dtypes] == kinds


@pytest.mark.parametrize(
    ("modality", "recorded", "given", "divisor"),
    [
        ("rgb", None, "float", 1.0),
        ("rgb", "float", "uint8", 255.0),
        ("rgb", None, "integer", 255.0),
        ("depth", None, "uint8", 255.0),
        ("depth", None, "float", 1.0),
        ("depth", None, "integer", 1.0),
        ("depth", "uint8", "uint8", 255.0),
        ("depth", "uint8", "float", 1.0),  # divided already
        ("depth", "integer", "float", 1.0),
        ("depth", "float", "float", 1.0),
        ("depth", "integer", "integer", 1.0),
        ("depth", "float", "uint8", None),
        ("depth", "integer", "uint8", None),
        ("depth", "uint8", "integer", None),
    ],
)
def test_divisors(modality, recorded, given, divisor):
    if divisor is not None:
        assert image_divisor(modality, recorded, given, "d") == divisor
        return
    words = f"image 'd' has values of type {given}, but the training data had {recorded}: give the image"
    with refused(words, error=UserError):
        image_divisor(modality, recorded, given, "d")


@pytest.mark.parametrize(
    ("shape", "dtype", "layout"),
    [
        ((64,), "u1", None),
        ((64, 64), "i4", None),
        ((1, 1, 3), "u1", "HWC"),
        ((1, 1, 3), "f4", None),
        ((5, 5, 1), "u1", "HWC"),
        ((4, 5, 4), "u1", None),
        ((5, 5, 4), "u1", "HWC"),
        ((1, 5, 5), "u1", "CHW"),
        ((4, 16, 16), "f4", "CHW"),
        ((3, 15, 16), "f4", None),
        ((3, 16, 16), "f4", "CHW"),
        ((16, 16, 1), "f4", "HWC"),
        ((3, 16, 4), "u1", None),
        ((4, 16, 3), "f4", None),
        ((3, 16, 16), "i4", None),
        ((16, 16, 1), "u2", "HWC"),
        ((1, 15, 16), "u2", None),
        ((16, 16), "u1", "HW"),
        ((15, 16), "u1", None),
        ((16, 16), "f4", None),
        ((16, 16, 2), "u1", "unknown"),
        ((16, 15, 2), "u1", None),
        ((16, 16, 5), "f4", "unknown"),
        ((4, 84, 84, 3), "u1", "unknown"),
        ((4, 84, 15, 3), "f4", None),
    ],
)
def test_layouts(shape, dtype, layout):
    assert image_layout(shape, np.dtype(dtype)) == layout


def test_images_in_their_layout_and_nested_names():
    assert in_layout(np.zeros((2, 3, 4, 5)), "CHW").shape == (2, 4, 5, 3)
    assert in_layout(np.zeros((2, 3, 4, 5)), "CHW").flags.c_contiguous
    assert in_layout(np.zeros((2, 4, 5)), "HW").shape == (2, 4, 5, 1)
    for layout in ("HWC", None):
        assert in_layout(np.zeros((2, 4, 5, 3)), layout).shape == (2, 4, 5, 3)
    assert nested_name("pixels", "the top") == "pixels_the_top"
    assert nested_name("", "the top") == "the top"
