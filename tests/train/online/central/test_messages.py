import json
import socket
import struct

import numpy as np
import pytest

from imitate.train.online.central.messages import ChannelError, Reader, decode, encode

MESSAGE = {
    "obs": {
        "image": np.arange(24, dtype=np.uint8).reshape(2, 4, 3),
        "x": np.array([[0.5], [-2.0]]),
    },
    "fresh": np.array([True, False]),
    "clock": np.array([[1, 2, 3]]),
    "state": {},
    "none": np.zeros((0, 3), dtype=np.float32),
    "number": np.array(7.0),
    "version": 3,
    "error": "no",
}


def sent(parts):
    return b"".join(bytes(part) for part in parts)


def assert_same(first, second):
    assert first.keys() == second.keys()
    for key, value in first.items():
        if isinstance(value, dict):
            assert_same(value, second[key])
        elif isinstance(value, np.ndarray):
            assert value.dtype == second[key].dtype and value.shape == second[key].shape
            assert np.array_equal(value, second[key])
        else:
            assert value == second[key]


@pytest.fixture
def pair():
    first, second = socket.socketpair()
    yield first, second
    first.close()
    second.close()


def test_messages_come_as_they_were_sent_however_they_are_cut(pair):
    data = 2 * sent(encode(MESSAGE))
    pair[1].setblocking(False)
    reader, found = Reader(pair[1]), []
    for start in range(0, len(data), 7):
        pair[0].sendall(data[start : start + 7])
        try:
            found.append(reader.read())
        except BlockingIOError:
            continue
    assert len(found) == 2
    for message in found:
        assert_same(message, MESSAGE)


def test_a_transposed_array_arrives(pair):
    pair[0].sendall(sent(encode({"x": np.arange(6).reshape(2, 3).T})))
    assert np.array_equal(Reader(pair[1]).read()["x"], np.arange(6).reshape(2, 3).T)


@pytest.mark.parametrize(
    ("text", "data"),
    [
        (b"nonsense", b""),
        (b"[]", b""),
        (b"3", b""),
        (b'{"x": ["<f4", [2]]}', b"1234"),  # too few bytes
        (b'{"x": ["<f4", [1]]}', b"12345678"),  # too many
        (b'{"x": ["<f4", [-1]]}', b"1234"),
        (b'{"x": ["<f4", [1e9]]}', b"1234"),
        (b'{"x": ["|O", [1]]}', b"12345678"),
        (b'{"x": ["<M8[s]", [1]]}', b"12345678"),
        (b'{"x": ["V8", [1]]}', b"12345678"),
        (b'{"x": ["(1,f4", [1]]}', b"1234"),  # numpy parses such names as Python
        (b'{"x": []}', b""),
        (b'{"x": [[], []]}', b""),
        (b"[" * 100_000, b""),
        (b"\xff", b""),
    ],
)
def test_what_is_no_message_is_refused(text, data):
    with pytest.raises(ChannelError, match="malformed"):
        decode(memoryview(text), memoryview(data))


def test_a_message_that_says_it_is_too_large_is_refused_before_memory_is_taken(pair):
    pair[0].sendall(struct.pack("!II", 10, 2**32 - 1))
    with pytest.raises(ChannelError, match="claims to have 4294967305 bytes"):
        Reader(pair[1]).read()


def test_a_message_too_large_to_be_read_is_not_sent(monkeypatch):
    monkeypatch.setattr("imitate.train.online.central.messages.MAX_MESSAGE", 1000)
    with pytest.raises(ChannelError, match="at most 1000 are allowed"):
        encode({"x": np.zeros(1000)})


def test_the_end_of_a_connection_is_told(pair):
    pair[0].sendall(sent(encode({"x": 1}))[:-1])
    pair[0].close()
    with pytest.raises(ChannelError, match="the other side closed"):
        Reader(pair[1]).read()


def test_the_description_is_json():
    first = sent(encode({"x": np.array([1.5], dtype=np.float32)}))
    text, size = struct.unpack("!II", first[:8])
    assert json.loads(first[8 : 8 + text]) == {"x": ["<f4", [1]]}
    assert first[8 + text :] == struct.pack("<f", 1.5) and size == 4
