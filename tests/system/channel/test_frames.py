"""Connections: messages of every size and form, deadlines, and farewells; frames are those of RFC 6455."""

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from imitate.errors import ClosedError, WireError
from imitate.system.channel.frames import (
    BINARY,
    FULL,
    NO_MASK,
    Channel,
    FrameHeader,
    header_of,
    masked,
    read_header,
)
from imitate.system.channel.stream import Budget, Stream

MASK = bytes.fromhex("37fa213d")
LIMIT = 2**22


@pytest.fixture
def sockets():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    yield near, far
    near.close()
    far.close()


def client_of(sock, mask=MASK):
    return Channel(Stream(sock), LIMIT, lambda: mask)


def server_of(sock):
    return Channel(Stream(sock), LIMIT)


@pytest.mark.parametrize("mask", [MASK, NO_MASK])
@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 3_000_001])
def test_messages_of_every_size_arrive_in_both_directions(sockets, mask, size):
    client, server = client_of(sockets[0], mask), server_of(sockets[1])
    data = np.random.default_rng(0).bytes(size)

    def echo():
        for _ in range(2):
            server.send(bytes(server.recv(600)), 600)

    thread = threading.Thread(target=echo)
    thread.start()
    for _ in range(2):
        client.send(data, 600)
        assert bytes(client.recv(600)) == data
    thread.join()


def test_memory_grows_with_what_came_not_with_what_is_announced(sockets):
    server = server_of(sockets[1])
    sockets[0].sendall(header_of(BINARY, LIMIT, MASK) + bytes(100))
    with pytest.raises(TimeoutError):
        server.recv(0.5)
    assert len(server._buffer) <= LIMIT // 4


@pytest.mark.parametrize(
    "unfinished",
    [
        header_of(BINARY, 70_000, NO_MASK) + bytes(10),
        bytes([0x02, 0x80 | 1]) + NO_MASK + b"x",  # the first frame of several
    ],
)
def test_unfinished_messages_take_no_more_than_the_common_budget(sockets, unfinished):
    budget = Budget(2**20 + 2**16)
    server = Channel(Stream(sockets[1]), LIMIT, budget=budget)
    budget.hold("another connection", 2**20)
    sockets[0].sendall(unfinished)
    with pytest.raises(ClosedError, match=FULL):
        while True:
            with contextlib.suppress(TimeoutError):
                server.recv(0.1)
    sockets[0].settimeout(600)
    assert sockets[0].recv(200)[4:].decode() == FULL
    assert (len(server._buffer), server._parts) == (0, [])


def test_a_large_message_stays_as_it_came_and_keeps_little_else(sockets):
    client, server = client_of(sockets[0], NO_MASK), server_of(sockets[1])
    sizes, kept = [10**5, 10**6, 10**6, 10**5, 10**5], []
    with ThreadPoolExecutor(1) as pool:
        for number, size in enumerate(sizes):
            parts = [bytes([number]) * (size - 3000), *[bytes([number])] * 3000]
            sending = pool.submit(client.send, parts, 600)
            kept.append(server.recv(600))
            sending.result()
    assert [bytes(data) for data in kept] == [bytes([n]) * size for n, size in enumerate(sizes)]
    assert all(len(data.obj) <= 2 * len(data) for data in kept)


def test_what_a_side_does_not_read_is_sent_later(sockets):
    client, server = client_of(sockets[0]), server_of(sockets[1])
    data = np.random.default_rng(0).bytes(LIMIT // 2)
    with pytest.raises(TimeoutError, match="does not read"):
        for _ in range(100):
            client.post([data])
            client.flush(0.0)
    assert client.unsent
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(client.flush, 600)
        assert bytes(server.recv(600)) == data
        while not sending.done():
            with contextlib.suppress(TimeoutError):
                assert bytes(server.recv(0.01)) == data
        assert sending.result() is None and not client.unsent


def test_messages_that_come_together_are_read_one_by_one(sockets):
    client, server = client_of(sockets[0]), server_of(sockets[1])
    for number in range(3):
        client.send(bytes([number]) * 40_000, 600)
    client.send("farewell", 600)
    assert [bytes(server.recv(600))[0] for _ in range(3)] == [0, 1, 2]
    assert server.recv(600) == "farewell"
    with pytest.raises(TimeoutError):
        server.recv(0.0)
    assert server.emptied


def test_a_message_in_drops_and_parts_is_whole(sockets):
    near, server = sockets[0], server_of(sockets[1])
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    parts = [(0x02, b"abc"), (0x89, b"sign of life"), (0x00, b""), (0x80, b"def")]
    stream = b"".join(
        bytes([first, 0x80 | len(data)]) + MASK + bytes(masked(data, MASK)) for first, data in parts
    )

    def drip():
        for octet in stream:
            near.send(bytes([octet]))

    thread = threading.Thread(target=drip)
    thread.start()
    assert bytes(server.recv(600)) == b"abcdef"
    thread.join()
    near.settimeout(600)
    assert near.recv(100) == bytes([0x8A, 12]) + b"sign of life"


@pytest.mark.parametrize(
    ("limit", "stream", "code", "words"),
    [
        (LIMIT, header_of(2, 3, None) + b"abc", 1002, ""),  # a client has to mask
        (LIMIT, bytes([0x80, 0x80]) + MASK, 1002, ""),  # continues nothing
        (LIMIT, bytes([0x02, 0x81]) + MASK + b"x" + bytes([0x82, 0x81]) + MASK + b"x", 1002, ""),  # two at once
        (LIMIT, b"GET / HTTP/1.1\r\n\r\n", 1002, ""),
        (LIMIT, header_of(2, 2**60, MASK), 1009, f"larger than {LIMIT}"),  # known by its header
        (10, b"".join(bytes([first, 0x86]) + MASK + bytes(6) for first in (0x02, 0x00)), 1009, "larger than 10"),
        (LIMIT, bytes([0x02, 0x80]) + MASK + (bytes([0x00, 0x80]) + MASK) * 1024, 1002, "more than 1024 frames"),
    ],
)  # fmt: skip
def test_what_is_no_frame_or_too_large_ends_the_connection(sockets, limit, stream, code, words):
    near, server = sockets[0], Channel(Stream(sockets[1]), limit)
    near.sendall(stream)
    near.shutdown(socket.SHUT_WR)
    with pytest.raises(ClosedError) as ended:
        server.recv(600)
    assert words in str(ended.value)
    with pytest.raises(ClosedError):
        server.send(b"x", 600)
    near.settimeout(600)
    farewell = near.recv(100)
    assert (farewell[0], farewell[2:4]) == (0x88, code.to_bytes(2, "big"))


def test_a_farewell_tells_its_reason(sockets):
    client, server = client_of(sockets[0]), server_of(sockets[1])
    thread = threading.Thread(target=lambda: server.close(1001, "no message for too long"))
    thread.start()
    with pytest.raises(ClosedError, match="no message for too long"):
        client.recv(600)
    with pytest.raises(ClosedError, match="no message for too long"):
        client.send(b"x", 600)
    client.abort()
    thread.join()


def test_every_call_ends_at_its_deadline(sockets):
    client = client_of(sockets[0])
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="nothing was received"):
        client.recv(0.2)
    assert time.monotonic() - began > 0.15
    with pytest.raises(TimeoutError, match="does not read"):
        while True:
            client.send(bytes(10**6), 0.3)
    with pytest.raises(ClosedError):  # part of a message was sent: nothing may follow it
        client.send(b"x", 1)


def test_a_side_that_sends_pings_without_end_is_left_at_the_deadline(sockets):
    client, far = client_of(sockets[0]), sockets[1]
    pings, ended = b"\x89\x00" * 500, threading.Event()

    def flood():
        far.settimeout(600)
        with contextlib.suppress(OSError):
            while not ended.is_set():
                far.recv(2**20)  # the answers
                far.sendall(pings)

    far.sendall(pings)
    thread = threading.Thread(target=flood)
    thread.start()
    try:
        with pytest.raises(TimeoutError):
            client.recv(0.3)
        client.close()
    finally:
        ended.set()
        sockets[0].close()
        thread.join()


def test_a_message_that_comes_drop_by_drop_is_left_at_the_deadline(sockets):
    client, far, ended = client_of(sockets[0]), sockets[1], threading.Event()
    far.sendall(header_of(BINARY, LIMIT, None))

    def drip():
        while not ended.wait(0.001):
            far.send(b"x")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(drip)
        with pytest.raises(TimeoutError, match="nothing was received in time"):
            client.recv(0.3)
        ended.set()


def test_abort_wakes_the_thread_that_waits(sockets):
    client = client_of(sockets[0])
    threading.Timer(0.2, client.abort).start()
    with pytest.raises(ClosedError):
        client.recv(600)


# ---- frames --------------------------------------------------------------------------------------


def test_the_examples_of_the_rfc():
    assert header_of(1, 5, None) + b"Hello" == bytes.fromhex("810548656c6c6f")
    whole = header_of(1, 5, MASK) + bytes(masked(b"Hello", MASK))
    assert whole == bytes.fromhex("818537fa213d7f9f4d5158")
    assert header_of(9, 5, None) == bytes.fromhex("8905")
    assert header_of(2, 256, None) == bytes.fromhex("827e0100")
    assert header_of(2, 65536, None) == bytes.fromhex("827f0000000000010000")


def test_headers_are_read_from_the_bytes_that_are_there():
    assert read_header(bytes.fromhex("0103")) == FrameHeader(1, False, None, 2, 3)
    assert read_header(bytes.fromhex("8002")) == FrameHeader(0, True, None, 2, 2)
    whole = header_of(2, 65536, MASK)
    for count in range(len(whole)):
        assert read_header(whole[:count]) is None
    assert read_header(whole + b"more") == FrameHeader(2, True, MASK, 14, 65536)


@pytest.mark.parametrize("data", ["c105", "a105", "9105", "8305", "8b05", "0903", "897e0100"])
def test_frames_that_are_forbidden(data):
    with pytest.raises(WireError):
        read_header(bytes.fromhex(data))


@given(data=st.binary(max_size=70_000), mask=st.none() | st.binary(min_size=4, max_size=4))
def test_headers_are_those_of_the_library(data, mask):
    head = header_of(2, len(data), mask)
    theirs = Frame(Opcode.BINARY, data).serialize(mask=False)
    assert theirs[: len(theirs) - len(data)] == header_of(2, len(data), None)
    assert read_header(head) == FrameHeader(2, True, mask, len(head), len(data))
    if mask is not None:
        assert bytes(masked(masked(data, mask), mask)) == data
        assert bytes(masked(data, mask)[:1]) == bytes(
            a ^ b for a, b in zip(data[:1], mask, strict=False)
        )
