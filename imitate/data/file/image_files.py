"""Conversion between JPEG or PNG files and image arrays."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_JPEG_QUALITY = 95
_NOT_DECODED = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


class DamagedFrameError(ValueError):
    """Error: a JPEG or PNG cannot be decoded.

    Attributes:
        frame: its index among the frames to decode.
    """

    def __init__(self, frame: int, reason: str) -> None:
        super().__init__(reason)
        self.frame = frame


def decode_images(
    frames: Sequence[Any] | NDArray[Any],
    shape: tuple[int, ...],
    encoding: str = "jpeg",
    threads: Executor | None = None,
) -> NDArray[np.uint8]:
    """Decode JPEGs or PNGs (bytes or uint8 arrays) to RGB images (T, H, W, 3); ``shape`` is the shape of each.

    Raises:
        DamagedFrameError: a frame is not an image of that kind and shape.
    """
    kind = encoding.upper()
    if len(frames):  # checked before memory is allocated for a shape that may be nonsense
        _opened(0, frames[0], shape, kind)
    images = np.empty((len(frames), *shape), dtype=np.uint8)

    def decode(frame: int) -> None:
        image = _opened(frame, frames[frame], shape, kind)
        try:
            images[frame] = np.asarray(image.convert("RGB"))
        except _NOT_DECODED as error:
            raise DamagedFrameError(frame, str(error)) from error

    for _ in (map if threads is None else threads.map)(decode, range(len(frames))):
        pass
    return images


def _opened(frame: int, data: Any, shape: tuple[int, ...], kind: str) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(bytes(data)), formats=(kind,))
    except _NOT_DECODED as error:
        raise DamagedFrameError(frame, f"not a {kind} file") from error
    if image.size != (shape[1], shape[0]):
        raise DamagedFrameError(
            frame, f"its size is {image.size[1]} x {image.size[0]}, not {shape[0]} x {shape[1]}"
        )
    return image


def encode_image(image: NDArray[np.uint8], encoding: str) -> NDArray[np.uint8]:
    """Encode an RGB image (H, W, 3) as a 'png', or as a 'jpeg' with colours at full resolution."""
    data = io.BytesIO()
    options: dict[str, Any] = (
        {} if encoding == "png" else {"quality": _JPEG_QUALITY, "subsampling": 0}
    )
    Image.fromarray(np.ascontiguousarray(image)).save(data, encoding.upper(), **options)
    return np.frombuffer(data.getvalue(), dtype=np.uint8)
