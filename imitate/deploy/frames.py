"""Frames of WebSocket connections (RFC 6455, section 5.2), without extensions."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
LONGEST_HEADER = 14
_OPCODES = frozenset({CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG})
_LONGEST_CONTROL = 125
NO_MASK = bytes(4)
"""Masking key that leaves the data unchanged."""

Buffer = bytes | bytearray | memoryview


class FrameError(ValueError):
    """The protocol forbids a frame; the connection must be closed."""


@dataclass(frozen=True, slots=True)
class Header:
    """The beginning of a frame.

    Attributes:
        opcode: one of the module's constants.
        final: true if the frame ends its message.
        mask: the masking key, or None if the data are not masked.
        size: size of the header itself in bytes.
        length: size of the following data in bytes.
    """

    opcode: int
    final: bool
    mask: bytes | None
    size: int
    length: int


def header_of(opcode: int, length: int, mask: bytes | None) -> bytes:
    """Return the header of a frame that contains a whole message."""
    masked = 0 if mask is None else 0x80
    if length < 126:
        head = struct.pack("!BB", 0x80 | opcode, masked | length)
    elif length < 2**16:
        head = struct.pack("!BBH", 0x80 | opcode, masked | 126, length)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, masked | 127, length)
    return head if mask is None else head + mask


def read_header(data: Buffer) -> Header | None:
    """Read the header at the beginning of ``data``; return None if more bytes are needed.

    Raises:
        FrameError: reserved bits, an unknown opcode, or a control frame that is too long or fragmented.
    """
    if len(data) < 2:
        return None
    first, second = data[0], data[1]
    opcode, final, length = first & 0x0F, bool(first & 0x80), second & 0x7F
    if first & 0x70 or opcode not in _OPCODES:
        raise FrameError("a frame of an unknown kind")
    if opcode >= CLOSE and (not final or length > _LONGEST_CONTROL):
        raise FrameError("a control frame that is too long or fragmented")
    size = 2
    if length >= 126:
        size, code = (4, "!H") if length == 126 else (10, "!Q")
        if len(data) < size:
            return None
        (length,) = struct.unpack_from(code, data, 2)
    mask = None
    if second & 0x80:
        if len(data) < size + 4:
            return None
        mask = bytes(data[size : size + 4])
        size += 4
    return Header(opcode, final, mask, size, length)


def masked(data: Buffer, mask: bytes) -> memoryview:
    """Return a copy of ``data`` with the key applied; applying it twice restores the data."""
    length = len(data)
    words: NDArray[np.uint32] = np.zeros((length + 3) // 4, dtype=np.uint32)
    octets = words.view(np.uint8)[:length]
    octets[:] = np.frombuffer(data, dtype=np.uint8)
    words ^= np.frombuffer(mask, dtype=np.uint32)
    return octets.data
