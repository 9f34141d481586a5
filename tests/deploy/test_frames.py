"""Frames of WebSocket connections: the examples of RFC 6455, and the library's own frames."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from imitate.deploy.frames import FrameError, Header, header_of, masked, read_header

MASK = bytes.fromhex("37fa213d")


def test_the_examples_of_the_rfc():
    assert header_of(1, 5, None) + b"Hello" == bytes.fromhex("810548656c6c6f")
    whole = header_of(1, 5, MASK) + bytes(masked(b"Hello", MASK))
    assert whole == bytes.fromhex("818537fa213d7f9f4d5158")
    assert header_of(9, 5, None) == bytes.fromhex("8905")
    assert header_of(2, 256, None) == bytes.fromhex("827e0100")
    assert header_of(2, 65536, None) == bytes.fromhex("827f0000000000010000")


def test_headers_are_read_from_the_bytes_that_are_there():
    assert read_header(bytes.fromhex("0103")) == Header(1, False, None, 2, 3)
    assert read_header(bytes.fromhex("8002")) == Header(0, True, None, 2, 2)
    whole = header_of(2, 65536, MASK)
    for count in range(len(whole)):
        assert read_header(whole[:count]) is None
    assert read_header(whole + b"more") == Header(2, True, MASK, 14, 65536)


@pytest.mark.parametrize("data", ["c105", "a105", "9105", "8305", "8b05", "0903", "897e0100"])
def test_frames_that_are_forbidden(data):
    with pytest.raises(FrameError):
        read_header(bytes.fromhex(data))


@given(data=st.binary(max_size=70_000), mask=st.none() | st.binary(min_size=4, max_size=4))
def test_headers_are_those_of_the_library(data, mask):
    head = header_of(2, len(data), mask)
    theirs = Frame(Opcode.BINARY, data).serialize(mask=False)
    assert theirs[: len(theirs) - len(data)] == header_of(2, len(data), None)
    assert read_header(head) == Header(2, True, mask, len(head), len(data))
    if mask is not None:
        assert bytes(masked(masked(data, mask), mask)) == data
        assert bytes(masked(data, mask)[:1]) == bytes(
            a ^ b for a, b in zip(data[:1], mask, strict=False)
        )
