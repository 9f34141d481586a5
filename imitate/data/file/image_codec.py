"""Storage of images in a file: as they are, compressed without loss, or as one JPEG per step.

A JPEG array is one-dimensional, ``(T,)`` of variable-length uint8, with the attributes ``encoding`` = 'jpeg' and
``shape`` = [H, W, 3], that of a decoded frame, in RGB.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any, Literal, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray
from PIL import Image

ImageStorage = Literal["raw", "gzip", "lzf", "jpeg"]
STORAGES: tuple[ImageStorage, ...] = ("raw", "gzip", "lzf", "jpeg")

# Of 84 x 84 frames, windows of ten steps read fastest from chunks of 4 to 16 frames, single steps from chunks of one;
# and four together take half the space of four apart.
_CHUNK_FRAMES = 4
_CHUNK_BYTES = 2**18
_NOT_DECODED = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


class DamagedFrameError(ValueError):
    """A JPEG that cannot be decoded.

    Attributes:
        frame: its number among those that were to be decoded.
    """

    def __init__(self, frame: int, reason: str) -> None:
        super().__init__(reason)
        self.frame = frame


class Storage(NamedTuple):
    """Storage of an array in the file.

    Attributes:
        kind: 'raw', in one piece; 'gzip', 'lzf' or another filter; 'jpeg'; 'chunked', without a filter.
        frame: shape of one decoded frame of a JPEG array; None for all others.
    """

    kind: str
    frame: tuple[int, ...] | None = None


def storage_of(array: h5py.Dataset) -> Storage:
    """Return how an array is stored.

    Raises:
        ValueError: it says that it holds JPEGs, but its form is another.
    """
    if h5py.check_vlen_dtype(array.dtype) == np.uint8 and array.attrs.get("encoding") == "jpeg":
        frame = tuple(int(size) for size in np.ravel(array.attrs["shape"]))
        if len(frame) != 3 or frame[2] != 3 or min(frame) < 1 or len(array.shape) != 1:
            raise ValueError(f"the attribute 'shape' of the JPEG frames is {frame}, not (H, W, 3)")
        return Storage("jpeg", frame)
    if array.chunks is None:
        return Storage("raw")
    filters = array.id.get_create_plist().get_nfilters()
    return Storage(str(array.compression or "filtered") if filters else "chunked")


def write_images(
    group: h5py.Group, key: str, values: NDArray[Any], storage: ImageStorage, quality: int
) -> None:
    """Write ``values`` (T, ...) as the array ``key``; 'jpeg' is gzip for whatever is not uint8 (T, H, W, 3)."""
    if storage == "raw":
        group.create_dataset(key, data=values)
        return
    if storage == "jpeg" and values.dtype == np.uint8 and values.ndim == 4 and values.shape[3] == 3:
        array = group.create_dataset(key, (len(values),), dtype=h5py.vlen_dtype(np.uint8))
        array.attrs["encoding"] = "jpeg"
        array.attrs["shape"] = values.shape[1:]
        for step, image in enumerate(values):
            array[step] = encode_jpeg(image, quality)
        return
    frame_bytes = max(1, values[0].nbytes)
    frames = max(1, min(_CHUNK_FRAMES, _CHUNK_BYTES // frame_bytes, len(values)))
    group.create_dataset(
        key,
        data=values,
        chunks=(frames, *values.shape[1:]),
        compression="lzf" if storage == "lzf" else "gzip",
    )


def encode_jpeg(image: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
    """Encode an RGB image (H, W, 3) as the bytes of a JPEG file, with colours at full resolution."""
    data = io.BytesIO()
    Image.fromarray(image).save(data, "JPEG", quality=quality, subsampling=0)
    return np.frombuffer(data.getvalue(), dtype=np.uint8)


def decode_jpegs(
    frames: Sequence[NDArray[np.uint8]] | NDArray[Any],
    shape: tuple[int, ...],
    threads: Executor | None = None,
) -> NDArray[np.uint8]:
    """Decode JPEGs to images (T, H, W, 3), RGB; ``shape`` is that of each.

    Raises:
        DamagedFrameError: a frame is no JPEG of that shape.
    """
    if len(frames):
        _opened(0, frames[0], shape)  # before memory is taken for a shape that may be nonsense
    images = np.empty((len(frames), *shape), dtype=np.uint8)

    def decode(frame: int) -> None:
        image = _opened(frame, frames[frame], shape)
        try:
            images[frame] = np.asarray(image.convert("RGB"))
        except _NOT_DECODED as error:
            raise DamagedFrameError(frame, str(error)) from error

    for _ in (map if threads is None else threads.map)(decode, range(len(frames))):
        pass
    return images


def _opened(frame: int, data: NDArray[np.uint8], shape: tuple[int, ...]) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(data.tobytes()), formats=("JPEG",))
    except _NOT_DECODED as error:
        raise DamagedFrameError(frame, "not a JPEG file") from error
    if image.size != (shape[1], shape[0]):
        raise DamagedFrameError(
            frame, f"its size is {image.size[1]} x {image.size[0]}, not {shape[0]} x {shape[1]}"
        )
    return image
