"""Messages come back as they were; what is malformed or oversized is refused before memory is taken."""

import contextlib

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imitate.errors import WireError
from imitate.system.channel.messages import DTYPES, Jpeg, decode, encode, encode_parts
from tests.refusals import refused


@pytest.mark.parametrize(
    "array",
    [
        *(np.arange(12).reshape(3, 4).astype(dtype) for dtype in sorted(DTYPES)),
        *(np.zeros((0, 3)), np.float32(1.5), np.arange(6.0).reshape(2, 3).T, np.arange(10)[::2]),
        *(np.array(3.0), np.arange(3, dtype=">f8")),
    ],
)
def test_arrays_of_every_type_and_layout_come_back(array):
    again = decode(encode({"x": array}))["x"]
    assert again.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
    assert again.shape == array.shape
    np.testing.assert_array_equal(again, array)


def test_nested_messages_come_back():
    message = {"a": [1, 2.5, None, True, "text", b"bytes"], "b": {"c": {"d": 1}}, 3: "number"}
    assert decode(encode(message)) == message


def test_the_layout_of_openpi():
    array = np.arange(3, dtype=np.float32)
    # As openpi's client packs it.
    packed = {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": "<f4"}
    scale = {b"__npgeneric__": True, b"data": 2.0, b"dtype": "<f8"}
    state = {**packed, b"shape": array.shape}
    theirs = msgpack.packb({"observation/state": state, "prompt": "pick it up", "scale": scale})
    message = decode(theirs)
    np.testing.assert_array_equal(message["observation/state"], array)
    assert (message["prompt"], message["scale"]) == ("pick it up", 2.0)
    raw = msgpack.unpackb(encode({"observation/state": array}))["observation/state"]
    assert raw == {**packed, b"shape": [3]}


def test_large_arrays_are_sent_and_read_where_they_are():
    message = {
        "first": np.arange(2**14, dtype=np.float64),
        "across": np.arange(3 * 2**15, dtype=np.int32).reshape(2**15, 3).T,
        "small": np.arange(3),
        "bytes": bytes(70_000),
        "last": [np.full(2**17, 7, np.uint8)],
    }
    parts = encode_parts(message)
    assert len(parts) == 7 and np.shares_memory(np.frombuffer(parts[1], float), message["first"])
    data = b"".join(parts)
    array = message["first"]
    layout = {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": "<f8", b"shape": [2**14]}
    assert msgpack.unpackb(data)["first"] == layout  # as msgpack alone writes and reads it
    read = decode(memoryview(data))
    assert np.shares_memory(read["first"], np.frombuffer(data, np.uint8))
    assert read["bytes"] == message["bytes"] and read["small"].tolist() == [0, 1, 2]
    for key in ("first", "across"):
        np.testing.assert_array_equal(read[key], message[key])
    np.testing.assert_array_equal(read["last"][0], message["last"][0])


def packed_array(**changes):
    whole = {b"__ndarray__": True, b"data": b"\0" * 8, b"dtype": "<f4", b"shape": [2]}
    return msgpack.packb({**whole, **{k.encode(): v for k, v in changes.items()}})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (packed_array(shape=[2**60]), "wants"),
        (packed_array(shape=[3]), "wants 12 bytes, got 8"),
        (packed_array(shape=[-2]), "whole numbers"),
        (packed_array(shape=[2.0]), "whole numbers"),
        (packed_array(shape=[True, 2]), "whole numbers"),
        (packed_array(shape=[1] * 9), "8 sizes"),
        (packed_array(shape=None), "8 sizes"),
        (packed_array(dtype="|O"), "dtype '|O'"),
        (packed_array(dtype="|V8"), "not read"),
        (packed_array(dtype="<c8"), "not read"),
        (packed_array(dtype=3), "not read"),
        (packed_array(data="text"), "got str"),
        (msgpack.packb({b"__npgeneric__": True, b"data": 10**9, b"dtype": "|i1"}), "does not fit"),
        (msgpack.packb({b"__npgeneric__": True, b"data": [1], b"dtype": "<f4"}), "is a list"),
        (b"", "malformed"),
        (b"\xc1", "malformed"),
        (b"\xdd\xff\xff\xff\xff", "malformed"),  # a list said to have 4,294,967,295 entries
        (b"\xc6\xff\xff\xff\xff", "malformed"),  # bytes declared as 4 GiB
        (msgpack.packb(msgpack.ExtType(1, b"x")), "malformed"),
        (msgpack.packb([bytes(70_000), msgpack.ExtType(0, b"x")]), "malformed"),
        (msgpack.packb([msgpack.ExtType(0, b"x"), bytes(70_000)]), "extensions are not allowed"),
        (msgpack.packb([bytes(70_000)])[:-1], "malformed"),
        (encode({"a": 1}) + b"\0", "malformed"),
    ],
)
def test_what_is_malformed_is_refused(data, words):
    with refused(words, error=WireError):
        decode(data)


def test_too_long_and_too_deep_messages_are_refused():
    with refused("at most 100 are read", error=WireError):
        decode(encode(np.zeros(100)), limit=100)
    message = 1
    for _ in range(9):
        message = [message]
    with refused("deeper than 8", error=WireError):
        decode(encode(message))
    with pytest.raises(WireError):
        decode(b"\x91" * 100_000 + b"\x01")


@pytest.mark.parametrize("value", [object(), {1, 2}, np.zeros(2, dtype=complex), np.array([None])])
def test_what_a_message_cannot_hold_is_refused(value):
    with pytest.raises(WireError):
        encode({"x": value})


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_else(data):
    with contextlib.suppress(WireError):
        decode(data)


def test_a_picture_as_jpeg():
    gradient = np.broadcast_to(np.linspace(0, 255, 64).astype(np.uint8)[:, None, None], (64, 48, 3))
    data = encode({"image": Jpeg(np.ascontiguousarray(gradient), quality=95)})
    again = decode(data)["image"]
    assert again.shape == (64, 48, 3) and again.dtype == np.uint8
    assert np.abs(again.astype(int) - gradient).max() <= 4
    assert len(data) < gradient.size / 4
    with pytest.raises(WireError, match="a JPEG needs"):
        Jpeg(np.zeros((4, 4, 3)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({b"shape": [8, 9, 3]}, "declared as"),
        ({b"shape": [2**20, 2**20, 3]}, "within"),
        ({b"__jpeg__": b"garbage"}, "cannot be read"),
        ({b"shape": [8, 8]}, "wanted"),
    ],
)
def test_a_picture_of_another_size_than_said_is_refused_before_it_is_decoded(changes, words):
    data = msgpack.unpackb(encode(Jpeg(np.zeros((8, 8, 3), np.uint8))))
    with refused(words, error=WireError):
        decode(msgpack.packb({**data, **changes}))


def test_memory_is_reserved_before_it_is_taken():
    reserved = []
    data = encode(Jpeg(np.zeros((8, 8, 3), np.uint8)))
    decode(data, reserve=reserved.append)
    decode(encode(bytes(70_000)), reserve=reserved.append)
    decode(b"\x80", reserve=reserved.append)
    assert reserved == [101 * len(data), 5 * 192, -4 * 192, 70_303, 101]

    def refuse(size):
        raise WireError(f"{size} bytes are too many")

    with refused("101 bytes are too many", error=WireError):
        decode(b"\xc1", reserve=refuse)
