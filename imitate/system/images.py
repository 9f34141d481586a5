"""Checks of arrays from users: masked values, units and layouts of images. Bundles need this module without torch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate.errors import UserError

IMAGE_MODALITIES = ("rgb", "depth")


def given_array(value: ArrayLike) -> NDArray[Any]:
    """Convert a user's value to an array.

    Raises:
        ValueError: the value has masked entries, which would become ordinary numbers, or lists of different lengths.
    """
    masked = int(np.sum(value.mask)) if isinstance(value, np.ma.MaskedArray) else 0
    if masked:
        raise ValueError(
            f"{masked} of its values are masked: replace them by numbers, for example with .filled(0)"
        )
    return np.asarray(value)


def image_type(dtype: object) -> str:
    """Return the type of an image's values: 'uint8', 'integer' (other integers, or booleans) or 'float'."""
    name = str(dtype).removeprefix("torch.")
    return name if name == "uint8" else "float" if "float" in name else "integer"


def image_divisor(modality: str, recorded: str | None, given: str, key: str) -> float:
    """Return the number by which an image is divided before it is given to a network.

    Depth keeps the unit of the training data: depth is divided by 255 only if it was recorded as uint8.

    Args:
        modality: 'rgb' or 'depth'.
        recorded: :func:`image_type` of the training data; None if unknown.
        given: :func:`image_type` of the image.
        key: name of the observation, for the error message.

    Raises:
        UserError: values of this type cannot be in the unit of the training data.
    """
    if modality == "rgb":
        return 1.0 if given == "float" else 255.0
    if recorded is not None and given != recorded and not (given == "float" != recorded):
        raise UserError(
            f"image '{key}' has values of type {given}, but the training data had {recorded}: give "
            "the image in the type and unit of the training data"
        )
    return 255.0 if given == "uint8" else 1.0


CHANNELS = {1, 3, 4}
# smallest side in pixels: smaller arrays may be boards, matrices or stacks of vectors
_LEAST_SIDE = 16
_LEAST_BYTES_SIDE = 5  # smallest side of a uint8 array with three axes


def image_layout(shape: Sequence[int], dtype: Any) -> str | None:
    """Return the layout of an observation, from the shape and dtype of one step.

    Returns:
        'HWC', 'CHW' (axes have to be permuted) or 'HW' (a channel axis has to be added) for an image; 'unknown' for an
        array as large as an image with none of these layouts, such as (84, 84, 12) or (4, 84, 84, 3); None for a
        vector.
    """
    size, is_uint8 = tuple(shape), dtype == np.uint8
    if len(size) < 2 or not (is_uint8 or dtype == np.uint16 or np.dtype(dtype).kind == "f"):
        return None
    if len(size) == 3 and is_uint8 and size[2] == 3:
        return "HWC"
    least = _LEAST_BYTES_SIDE if is_uint8 and len(size) == 3 else _LEAST_SIDE
    is_large = sum(side >= least for side in size) >= 2
    if len(size) == 2:
        return "HW" if is_uint8 and is_large else None
    if len(size) == 3 and is_large and CHANNELS.intersection((size[0], size[2])):
        return "HWC" if size[2] in CHANNELS else "CHW"
    return "unknown" if sum(side >= _LEAST_SIDE for side in size) >= 2 else None


def in_layout(images: NDArray[Any], layout: str | None) -> NDArray[Any]:
    """Convert images in a layout of :func:`image_layout` to (..., H, W, C)."""
    if layout == "CHW":
        return np.ascontiguousarray(np.moveaxis(images, -3, -1))
    return images[..., None] if layout == "HW" else images


def nested_name(outer: str, key: str) -> str:
    """Return the flat name of a nested observation: ``{"pixels": {"the top": ...}}`` becomes ``pixels_the_top``.

    An ``outer`` of '' means that the observation is not nested.
    """
    return f"{outer}_{key.replace(' ', '_')}" if outer else key
