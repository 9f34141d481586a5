"""Compressed images as arrays."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import imageio.v3 as iio
import numpy as np
from numpy.typing import NDArray

from imitate.errors import DatasetError


def decoded(data: bytes, where: str) -> NDArray[Any]:
    """A JPEG or PNG as (H, W, C), or (H, W) for gray and depth.

    Raises:
        DatasetError: the bytes are no image; ``where`` says whose.
    """
    try:
        return np.asarray(iio.imread(BytesIO(data), plugin="pillow"))
    except (OSError, ValueError, SyntaxError, RuntimeError) as error:
        raise DatasetError(f"{where}: holds bytes that are no image ({error})") from error


def as_png(frame: NDArray[Any]) -> bytes:
    """A (H, W, 3) frame as a PNG: no value changes."""
    data: bytes = iio.imwrite("<bytes>", frame, plugin="pillow", extension=".png")
    return data
