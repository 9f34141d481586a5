"""Units of images, by the type of what was recorded and of what arrives."""

import numpy as np
import pytest
import torch

from imitate.errors import UserError
from imitate.system.images import image_divisor, image_type


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        *((np.dtype(name), "integer") for name in ("uint16", "int32", "int64", "bool")),
        *((dtype, "integer") for dtype in (torch.int16, torch.bool)),
        *((dtype, "uint8") for dtype in (np.dtype("uint8"), torch.uint8)),
        *((dtype, "float") for dtype in (np.dtype("float64"), torch.float16, torch.bfloat16)),
    ],
)
def test_types(dtype, wanted):
    assert image_type(dtype) == wanted


@pytest.mark.parametrize(
    ("modality", "recorded", "given", "divisor"),
    [
        ("rgb", "uint8", "uint8", 255),
        ("rgb", "float", "uint8", 255),
        ("rgb", "uint8", "float", 1),
        ("rgb", "uint8", "integer", 255),  # int64 pixels, whose range is checked
        ("depth", "uint8", "uint8", 255),
        ("depth", "uint8", "float", 1),  # in [0, 1], which is checked
        ("depth", "integer", "integer", 1),  # millimetres stay millimetres
        ("depth", "integer", "float", 1),
        ("depth", "float", "float", 1),
        ("depth", "integer", "uint8", None),
        ("depth", "float", "uint8", None),
        ("depth", "float", "integer", None),  # metres were recorded, millimetres arrive
        ("depth", "uint8", "integer", None),
        ("depth", None, "uint8", 255),
        ("depth", None, "integer", 1),
    ],
)
def test_depth_keeps_the_unit_of_the_data(modality, recorded, given, divisor):
    if divisor is not None:
        assert image_divisor(modality, recorded, given, "cam") == divisor
        return
    with pytest.raises(UserError, match=f"image 'cam' has values of type {given}.* had {recorded}"):
        image_divisor(modality, recorded, given, "cam")
