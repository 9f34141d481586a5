"""Messages of connections: msgpack with numpy arrays, as openpi's clients write them.

An array is a map ``{b"__ndarray__": True, b"data": bytes, b"dtype": "<f4", b"shape": [...]}``, a numpy scalar
``{b"__npgeneric__": True, b"data": number, b"dtype": ...}``. Unlike in openpi's messages, an image may also be
``{b"__jpeg__": bytes, b"shape": [H, W, 3]}``. Nothing here can run code: types are numbers, strings, bytes, lists, maps
and arrays of the dtypes in ``DTYPES``; sizes are checked before memory is allocated.

Needs msgpack, and pillow for JPEG; no torch.
"""

import io
import math
import secrets
import struct
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from imitate.errors import WireError
from imitate.system.channel.stream import Buffer

MAX_MESSAGE = 64 * 2**20
"""Largest size in bytes of a message that is read."""
DTYPES = frozenset(["f2", "f4", "f8", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "b1"])
"""Dtypes of arrays, without byte order."""
_READ = {order + name: np.dtype(order + name) for order in "<>|=" for name in DTYPES}
_MAX_ENTRIES = 4096
MAX_OBJECTS = 2**16
"""Largest number of objects (numbers, texts, lists, maps) in a message: each takes much more memory than its bytes."""
_OBJECT_BYTES = 100
"""Memory in bytes that an object encoded in one byte takes, such as an empty map in a list."""
_MAX_DEPTH = 8
_DECODING = 5
"""Bytes of memory that decoding takes per byte of the decoded image, including the image itself."""
_MAX_DIMENSIONS = 8
_CONTAINERS, _BYTES = (dict, list), (bytes, memoryview)
LARGE = 2**16
"""Size in bytes from which the data of an array are sent and received without a copy."""
_BYTES_32 = 0xC6
"""Byte that msgpack writes before the size of a byte string of this length."""


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
    """Encode a message as one byte string, see :func:`encode_parts`."""
    return b"".join(encode_parts(message))


def encode_parts(message: Any) -> list[Buffer]:
    """Encode a message as buffers to send one after the other, which share the memory of large arrays.

    Args:
        message: nested dicts and lists of numbers, strings, bytes, numpy arrays and :class:`Jpeg`.

    Raises:
        WireError: the message contains an object of another type, or an array of another dtype.
    """
    packing = _Packing()
    try:
        packed: bytes = msgpack.packb(message, default=packing)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(str(error)) from error
    parts: list[Buffer] = [packed]
    for data in packing.large:
        before, after = bytes(parts.pop()).split(packing.placeholder, 1)
        parts += [before + struct.pack("!BI", _BYTES_32, len(data)), data, after]
    return parts


def _anything(size: int) -> None:
    """Reserve nothing; the default of ``reserve``."""


def decode(
    data: bytes | memoryview, limit: int = MAX_MESSAGE, reserve: Callable[[int], None] = _anything
) -> Any:
    """Decode the message in ``data``; large arrays and bytes share its memory.

    Args:
        data: the message.
        limit: largest size in bytes of the message, with its images decoded.
        reserve: function that is called with a number of bytes before this memory is needed for the message, its
            objects and each image; it may raise WireError.

    Raises:
        WireError: the message is malformed, larger than ``limit``, of more than ``MAX_OBJECTS`` objects, nested too
            deep, or contains forbidden types.
    """
    if len(data) > limit:
        raise WireError(f"the message has {len(data)} bytes; at most {limit} are read")
    large: list[memoryview] = []
    if len(data) > MAX_OBJECTS:
        data, large = _without_large(memoryview(data))
    reserve(sum(map(len, large)) + len(data) + _OBJECT_BYTES * min(len(data), MAX_OBJECTS))
    places = iter(large)
    try:
        message = msgpack.unpackb(
            data,
            object_hook=_Unpacking(limit, reserve),
            ext_hook=lambda *_: next(places),
            strict_map_key=False,
            max_bin_len=limit,
            max_str_len=min(limit, 2**20),
            max_array_len=_MAX_ENTRIES,
            max_map_len=_MAX_ENTRIES,
            max_ext_len=1 if large else 0,
        )
    except WireError:
        raise
    except Exception as error:  # msgpack raises ValueError and its own errors
        raise WireError(f"the message is malformed: {type(error).__name__}") from error
    _check_depth(message, _MAX_DEPTH)
    return message


def decode_map(
    data: memoryview | str, limit: int = MAX_MESSAGE, reserve: Callable[[int], None] = _anything
) -> dict[Any, Any]:
    """Decode a received message that must be a map.

    Raises:
        WireError: as for :func:`decode`, or the message is not a map.
    """
    message = None if isinstance(data, str) else decode(data, limit, reserve)
    if not isinstance(message, dict):
        raise WireError("a message must be a map")
    return message


_LENGTHS = dict(
    zip(b"\xc4\xc5\xc6\xd9\xda\xdb\xdc\xdd\xde\xdf", (1, 2, 4) * 2 + (2, 4) * 2, strict=True)
)
"""Number of bytes in which msgpack stores a length, by the first byte of a byte string, text, list or map."""
_FIXED = {
    **{first: (1, 0) for first in (*range(0x80), *range(0xC0, 0xC4), *range(0xE0, 0x100))},
    **{0x80 + count: (1, 2 * count) for count in range(16)},
    **{0x90 + count: (1, count) for count in range(16)},
    **{0xA0 + count: (1 + count, 0) for count in range(32)},
    **{0xCA + n: (1 + size, 0) for n, size in enumerate((4, 8, 1, 2, 4, 8, 1, 2, 4, 8))},
}
"""Size in bytes of an object without its contents, and number of objects in it, by the first byte."""
_PLACE = b"\xd4\0\0"
"""Placeholder (a msgpack extension of one byte) for a large byte string."""


def _without_large(data: memoryview) -> tuple[bytes, list[memoryview]]:
    """Count the objects by their first bytes, before any object is created, and cut out large byte strings.

    Returns:
        the message with a placeholder for each large byte string, and the large byte strings.

    Raises:
        WireError: there are too many objects, or extensions.
    """
    pieces: list[Buffer] = []
    large: list[memoryview] = []
    at, cut, wanted, total, end = 0, 0, 1, 1, len(data)
    while wanted and total + end - at > MAX_OBJECTS:  # fewer bytes cannot contain too many objects
        first = data[at]
        wanted -= 1
        parts = 0
        if first in _FIXED:
            size, parts = _FIXED[first]
            at += size
        elif first in _LENGTHS:
            begin, at = at, at + 1 + _LENGTHS[first]
            size = int.from_bytes(data[begin + 1 : at], "big")
            if first >= 0xDC:
                parts = size if first < 0xDE else 2 * size
            elif first == _BYTES_32 and LARGE <= size <= end - at:
                pieces += [data[cut:begin], _PLACE]
                large.append(data[at : at + size])
                at = cut = at + size
            else:
                at += size
        else:
            raise WireError("the message is malformed: extensions are not allowed")
        if parts:
            wanted, total = wanted + parts, total + parts
            if total > MAX_OBJECTS:
                raise WireError(f"the message has more than {MAX_OBJECTS} parts")
    return b"".join([*pieces, data[cut:]]), large


def _check_depth(value: Any, left: int) -> None:
    if isinstance(value, _CONTAINERS):
        if left == 0:
            raise WireError(f"the message is nested deeper than {_MAX_DEPTH} levels")
        for part in value.values() if isinstance(value, dict) else value:
            _check_depth(part, left - 1)


class _Packing:
    """Encoder of one message's arrays and images.

    Attributes:
        large: the data of large arrays, in the order of their placeholders in the message.
        placeholder: the bytes that replace a large array in the encoded message; random, to be unique in the message.
    """

    def __init__(self) -> None:
        self.large: list[memoryview] = []
        self._name = secrets.token_bytes(16)
        self.placeholder = b"\xc4\x10" + self._name

    def __call__(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            _check_dtype(value.dtype)
            if value.nbytes < LARGE:
                data = value.tobytes()
            else:
                self.large.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
                data = self._name
            return {
                b"__ndarray__": True,
                b"data": data,
                b"dtype": value.dtype.str,
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

    def __init__(self, limit: int, reserve: Callable[[int], None]) -> None:
        self._limit = self._left = limit
        self._reserve = reserve

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
        self._reserve(_DECODING * math.prod(shape))
        image = _image(value, shape)
        self._reserve((1 - _DECODING) * math.prod(shape))
        return image


def _dtype(value: dict[Any, Any]) -> np.dtype[Any]:
    name = value.get(b"dtype")
    if isinstance(name, bytes):
        name = name.decode("ascii", "replace")
    dtype = _READ.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise WireError(f"an array has dtype {str(name)[:20]!r}, which is not read")
    return dtype


def _shape(value: dict[Any, Any]) -> tuple[int, ...]:
    shape = value.get(b"shape")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS:
        raise WireError("the shape of an array must be a list of at most 8 sizes")
    for size in shape:
        if type(size) is not int or size < 0:
            raise WireError("the shape of an array must consist of whole numbers of at least 0")
    return tuple(shape)


def _array(value: dict[Any, Any]) -> NDArray[Any]:
    dtype, shape, data = _dtype(value), _shape(value), value.get(b"data")
    size = math.prod(shape) * dtype.itemsize
    if not isinstance(data, _BYTES) or len(data) != size:
        got = len(data) if isinstance(data, _BYTES) else type(data).__name__
        raise WireError(
            f"an array of shape {shape} and dtype {dtype} wants {size} bytes, got {got}"
        )
    return np.ndarray(shape, dtype, data)


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
    from PIL import Image  # imported here, because only connections that agreed on JPEG need pillow

    buffer = io.BytesIO()
    Image.fromarray(picture.image).save(buffer, format="JPEG", quality=picture.quality)
    return buffer.getvalue()


def _image(value: dict[Any, Any], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    from PIL import Image

    data = value[b"__jpeg__"]
    if len(shape) != 3 or shape[2] != 3 or not isinstance(data, _BYTES):
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
