"""Messages between a policy server and its clients: msgpack with numpy arrays, as openpi's clients write them.

An array is a map ``{b"__ndarray__": True, b"data": bytes, b"dtype": "<f4", b"shape": [...]}``, a numpy scalar
``{b"__npgeneric__": True, b"data": number, b"dtype": ...}``. Beyond openpi's, an image may be
``{b"__jpeg__": bytes, b"shape": [H, W, 3]}``. Nothing here can run code: types are numbers, strings, bytes, lists, maps
and arrays of the dtypes in ``DTYPES``; sizes are checked before memory is allocated.

Needs msgpack, and pillow for JPEG; no torch.
"""

from __future__ import annotations

import io
import math
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from imitate.errors import WireError as WireError

MAX_MESSAGE = 64 * 2**20
"""Largest size in bytes of a message that is read."""
DTYPES = frozenset(["f2", "f4", "f8", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "b1"])
"""Dtypes of arrays, without byte order."""
_MAX_ENTRIES = 4096
MAX_OBJECTS = 2**16
"""Largest number of objects (numbers, texts, lists, maps) in a message: each takes much more memory than its bytes."""
_MAX_DEPTH = 8
_MAX_DIMENSIONS = 8


class Jpeg:
    """An image (H, W, 3) uint8 to be sent as JPEG.

    Args:
        image: (H, W, 3) uint8, red first.
        quality: 1 to 95.
    """

    def __init__(self, image: NDArray[np.uint8], quality: int = 90) -> None:
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise WireError(
                f"a JPEG needs an image (H, W, 3) uint8, not {image.shape} {image.dtype}"
            )
        self.image, self.quality = image, quality


def encode(message: Any) -> bytes:
    """Encode a message as bytes.

    Args:
        message: nested dicts and lists of numbers, strings, bytes, numpy arrays and :class:`Jpeg`.

    Raises:
        WireError: it contains something else, or an array of another dtype.
    """
    try:
        packed: bytes = msgpack.packb(message, default=_pack)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(str(error)) from error
    return packed


def decode(data: bytes | memoryview, limit: int = MAX_MESSAGE) -> Any:
    """Decode the message in ``data``; arrays are read-only views if possible.

    Raises:
        WireError: it is malformed, larger than ``limit`` bytes (its images decoded), of more than ``MAX_OBJECTS``
            parts, nested too deep, or contains forbidden types.
    """
    if len(data) > limit:
        raise WireError(f"the message has {len(data)} bytes; at most {limit} are read")
    if len(data) > MAX_OBJECTS:
        _check_objects(data)
    try:
        message = msgpack.unpackb(
            data,
            object_hook=_Unpacking(limit),
            strict_map_key=False,
            max_bin_len=limit,
            max_str_len=min(limit, 2**20),
            max_array_len=_MAX_ENTRIES,
            max_map_len=_MAX_ENTRIES,
            max_ext_len=0,
        )
    except WireError:
        raise
    except Exception as error:  # msgpack raises ValueError and its own errors
        raise WireError(f"the message is malformed: {type(error).__name__}") from error
    _check_depth(message, _MAX_DEPTH)
    return message


# Number of bytes after an object's first byte: of its length, and of its value.
_LENGTHS = {
    0xC4: 1,
    0xC5: 2,
    0xC6: 4,
    0xD9: 1,
    0xDA: 2,
    0xDB: 4,
    0xDC: 2,
    0xDD: 4,
    0xDE: 2,
    0xDF: 4,
}
_VALUES = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}


def _check_objects(data: bytes | memoryview) -> None:
    """Count the objects by their first bytes, before any is created.

    Raises:
        WireError: there are too many.
    """
    at, wanted, counted = 0, 1, 0
    while wanted and at < len(data):
        first = data[at]
        wanted, counted, at = wanted - 1, counted + 1, at + 1
        if counted + wanted > MAX_OBJECTS:
            raise WireError(f"the message has more than {MAX_OBJECTS} parts")
        if first in _LENGTHS:
            size = int.from_bytes(data[at : at + _LENGTHS[first]], "big")
            at += _LENGTHS[first]
            if first < 0xDC:
                at += size
            else:
                wanted += size if first < 0xDE else 2 * size
        elif 0x80 <= first < 0xA0:
            wanted += 2 * (first - 0x80) if first < 0x90 else first - 0x90
        elif 0xA0 <= first < 0xC0:
            at += first - 0xA0
        else:
            at += _VALUES.get(first, 0)


def _check_depth(value: Any, left: int) -> None:
    if isinstance(value, dict | list):
        if left == 0:
            raise WireError(f"the message is nested deeper than {_MAX_DEPTH} levels")
        for part in value.values() if isinstance(value, dict) else value:
            _check_depth(part, left - 1)


def _pack(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        _check_dtype(value.dtype)
        whole = np.ascontiguousarray(value)
        data = whole.reshape(-1).view(np.uint8).data if whole.size else b""
        return {
            b"__ndarray__": True,
            b"data": data,
            b"dtype": whole.dtype.str,
            b"shape": value.shape,
        }
    if isinstance(value, np.generic):
        _check_dtype(value.dtype)
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    if isinstance(value, Jpeg):
        return {b"__jpeg__": _jpeg(value), b"shape": value.image.shape}
    raise WireError(f"a message cannot contain a {type(value).__name__}")


def _check_dtype(dtype: np.dtype[Any]) -> None:
    if dtype.str[1:] not in DTYPES:
        raise WireError(f"a message cannot contain arrays of dtype {dtype}")


class _Unpacking:
    """Decoder of one message's arrays and images, with a size limit on decoded images."""

    def __init__(self, limit: int) -> None:
        self._limit = self._left = limit

    def __call__(self, value: dict[Any, Any]) -> Any:
        if b"__ndarray__" in value:
            return _array(value)
        if b"__npgeneric__" in value:
            return _scalar(value)
        if b"__jpeg__" not in value:
            return value
        shape = _shape(value)
        if math.prod(shape) > self._limit:
            raise WireError(
                f"a JPEG has the shape {shape}; wanted (H, W, 3) within {self._limit} bytes"
            )
        self._left -= math.prod(shape)
        if self._left < 0:
            raise WireError(f"the images of the message take more than {self._limit} bytes")
        return _image(value, shape)


def _dtype(value: dict[Any, Any]) -> np.dtype[Any]:
    name = value.get(b"dtype")
    if isinstance(name, bytes):
        name = name.decode("ascii", "replace")
    if not isinstance(name, str) or name[:1] not in "<>|=" or name[1:] not in DTYPES:
        raise WireError(f"an array has dtype {str(name)[:20]!r}, which is not read")
    return np.dtype(name)


def _shape(value: dict[Any, Any]) -> tuple[int, ...]:
    shape = value.get(b"shape")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS:
        raise WireError("an array has no shape of at most 8 dimensions")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise WireError("an array has a shape that is not of whole numbers")
    return tuple(shape)


def _array(value: dict[Any, Any]) -> NDArray[Any]:
    dtype, shape, data = _dtype(value), _shape(value), value.get(b"data")
    size = math.prod(shape) * dtype.itemsize
    if not isinstance(data, bytes) or len(data) != size:
        got = len(data) if isinstance(data, bytes) else type(data).__name__
        raise WireError(
            f"an array of shape {shape} and dtype {dtype} wants {size} bytes, got {got}"
        )
    return np.frombuffer(data, dtype=dtype).reshape(shape)


def _scalar(value: dict[Any, Any]) -> np.generic:
    data = value.get(b"data")
    if not isinstance(data, bool | int | float):
        raise WireError(f"a number is a {type(data).__name__}")
    dtype = _dtype(value)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if not limits.min <= data <= limits.max:
            raise WireError(f"the number {data} does not fit its dtype {dtype}")
    scalar: np.generic = dtype.type(data)
    return scalar


def _jpeg(picture: Jpeg) -> bytes:
    from PIL import Image  # only clients and servers that agreed on JPEG load pillow

    buffer = io.BytesIO()
    Image.fromarray(picture.image).save(buffer, format="JPEG", quality=picture.quality)
    return buffer.getvalue()


def _image(value: dict[Any, Any], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    from PIL import Image

    data = value[b"__jpeg__"]
    if len(shape) != 3 or shape[2] != 3 or not isinstance(data, bytes):
        raise WireError(f"a JPEG has the shape {shape}; wanted (H, W, 3)")
    try:
        picture = Image.open(io.BytesIO(data), formats=["JPEG"])
        if picture.size != (shape[1], shape[0]):  # the size is known before decoding
            raise WireError(
                f"a JPEG is {picture.size[1]} x {picture.size[0]} but was declared as {shape}"
            )
        return np.asarray(picture.convert("RGB"))
    except WireError:
        raise
    except Exception as error:  # pillow raises many kinds of errors for damaged files
        raise WireError(f"a JPEG cannot be read: {type(error).__name__}") from error
