"""Conversion of compressed images to arrays."""

from collections.abc import Iterable, Sequence
from io import BytesIO
from typing import Any

import imageio.v3 as iio
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from imitate.data.file.encoded_frames import EncodedFrames
from imitate.errors import DatasetError
from imitate.system.memory import ALWAYS_BYTES, MAX_RATIO, check_room

_FORMATS = ("JPEG", "PNG")
"""Image formats that are decoded; some other formats are programs (PostScript) or contain endless images."""


def decoded(data: bytes, where: str) -> NDArray[Any]:
    """Decode a JPEG or PNG to (H, W, C), or to (H, W) for gray and depth images.

    Raises:
        DatasetError: the bytes are not an image; the message begins with ``where``.
    """
    try:
        with Image.open(BytesIO(data), formats=_FORMATS) as image:
            width, height = image.size
        if 3 * width * height > max(ALWAYS_BYTES, MAX_RATIO * len(data)):
            raise DatasetError(
                f"{where}: {len(data)} bytes claim to be an image of {height} x {width}: the file is damaged"
            )
        return np.asarray(iio.imread(BytesIO(data), index=0, plugin="pillow"))
    except (OSError, ValueError, SyntaxError, RuntimeError, Image.DecompressionBombError) as error:
        raise DatasetError(f"{where}: contains bytes that are not an image ({error})") from error


def stacked(images: Iterable[NDArray[Any]], count: int, where: str) -> NDArray[Any]:
    """Return ``count`` images as one array; refuse them if, by the size of the first, they do not fit into memory.

    Raises:
        DatasetError: no image is given, or an image has another shape or type than the first.
    """
    found: NDArray[Any] = np.empty(0)
    for place, image in enumerate(images):
        if place == 0:
            check_room(where, count * image.nbytes)
            found = np.empty((count, *image.shape), dtype=image.dtype)
        if (image.shape, image.dtype) != (found.shape[1:], found.dtype):
            raise DatasetError(
                f"{where}: image {place} is {image.shape} {image.dtype}, but the first is "
                f"{found.shape[1:]} {found.dtype}"
            )
        found[place] = image
    return found


def as_encoded(cells: Sequence[bytes]) -> EncodedFrames | None:
    """Return compressed RGB images without decoding them; None if types or sizes differ, or one is not an image."""
    try:
        found = {_form(data) for data in cells}
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    if len(found) != 1:
        return None
    ((encoding, (width, height), mode),) = found
    if mode != "RGB" or 3 * width * height > max(ALWAYS_BYTES, MAX_RATIO * min(map(len, cells))):
        return None
    return EncodedFrames(encoding, cells, (height, width, 3))


def _form(data: bytes) -> tuple[str, tuple[int, int], str]:
    with Image.open(BytesIO(data), formats=_FORMATS) as image:
        return str(image.format).lower(), image.size, image.mode


def as_png(frame: NDArray[Any]) -> bytes:
    """Encode a (H, W, 3) frame as a PNG, without loss."""
    data: bytes = iio.imwrite("<bytes>", frame, plugin="pillow", extension=".png")
    return data
