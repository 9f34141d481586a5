"""Layout of images among the observations of environments and of datasets made in them, and their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CHANNELS = {1, 3, 4}
_LEAST_SIDE = 16  # pixels: smaller arrays of numbers may be boards, matrices or stacks of vectors
_LEAST_BYTES_SIDE = 5  # of three axes of bytes


def image_layout(shape: Sequence[int], dtype: Any) -> str | None:
    """Return the layout of an observation by the shape and type of one step.

    Returns:
        'HWC', 'CHW' (to be turned) or 'HW' (a channel is to be added) of an image; 'unknown' of what is as large as an
        image and has none of these layouts, such as (84, 84, 12) or (4, 84, 84, 3); None of a vector.
    """
    size, is_uint8 = tuple(shape), dtype == np.uint8
    if len(size) < 2 or not (is_uint8 or np.dtype(dtype).kind == "f"):
        return None
    if len(size) == 3 and is_uint8 and size[2] == 3:
        return "HWC"
    least = _LEAST_BYTES_SIDE if is_uint8 and len(size) == 3 else _LEAST_SIDE
    is_large = sum(side >= least for side in size) >= 2
    if len(size) == 2:
        return "HW" if is_uint8 and is_large else None
    if len(size) == 3 and is_large and _CHANNELS.intersection((size[0], size[2])):
        return "HWC" if size[2] in _CHANNELS else "CHW"
    return "unknown" if sum(side >= _LEAST_SIDE for side in size) >= 2 else None


def in_layout(images: NDArray[Any], layout: str | None) -> NDArray[Any]:
    """Return images (..., H, W, C) of those in a layout of :func:`image_layout`."""
    if layout == "CHW":
        return np.ascontiguousarray(np.moveaxis(images, -3, -1))
    return images[..., None] if layout == "HW" else images


def nested_name(outer: str, key: str) -> str:
    """Return the name of a part: ``{"pixels": {"the top": ...}}`` is ``pixels_the_top``; '' stands for no outer."""
    return f"{outer}_{key.replace(' ', '_')}" if outer else key
