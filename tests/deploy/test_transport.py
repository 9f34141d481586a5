"""Connections: messages of every size and form, deadlines, and farewells."""

import contextlib
import socket
import threading
import time

import numpy as np
import pytest

from imitate.deploy.frames import NO_MASK, header_of, masked
from imitate.deploy.transport import Channel, ClosedError, Stream
from imitate.deploy.wire import encode

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
    "stream",
    [
        header_of(2, 3, None) + b"abc",  # a client has to mask
        bytes([0x80, 0x80]) + MASK,  # continues nothing
        bytes([0x02, 0x81]) + MASK + b"x" + bytes([0x82, 0x81]) + MASK + b"x",  # two at once
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_frame_ends_the_connection(sockets, stream):
    server = server_of(sockets[1])
    sockets[0].sendall(stream)
    sockets[0].shutdown(socket.SHUT_WR)
    with pytest.raises(ClosedError):
        server.recv(600)
    with pytest.raises(ClosedError):
        server.send(b"x", 600)
    sockets[0].settimeout(600)
    farewell = sockets[0].recv(100)
    assert (farewell[0], farewell[2:4]) == (0x88, (1002).to_bytes(2, "big"))


def test_a_message_beyond_the_limit_is_refused_by_its_header(sockets):
    server = server_of(sockets[1])
    sockets[0].sendall(header_of(2, 2**60, MASK))
    sockets[0].shutdown(socket.SHUT_WR)
    with pytest.raises(ClosedError, match=f"larger than {LIMIT}"):
        server.recv(600)
    sockets[0].settimeout(600)
    assert sockets[0].recv(100)[2:4] == (1009).to_bytes(2, "big")


def test_parts_count_together(sockets):
    server = Channel(Stream(sockets[1]), 10)
    frame = bytes([0x02, 0x86]) + MASK + bytes(6)
    sockets[0].sendall(frame + bytes([0x00]) + frame[1:])
    sockets[0].shutdown(socket.SHUT_WR)
    with pytest.raises(ClosedError, match="larger than 10"):
        server.recv(600)


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


@pytest.mark.parametrize(("local", "keys"), [(True, {NO_MASK}), (False, None)])
def test_each_frame_has_a_new_key_except_on_this_machine(local, keys, monkeypatch):
    from imitate.deploy import handshake, transport
    from imitate.deploy.server import PolicyServer
    from tests.deploy.counting_policy import Counter

    if not local:
        monkeypatch.setattr(handshake, "_LOCAL", frozenset())
    used = []
    head = header_of
    monkeypatch.setattr(
        transport, "header_of", lambda kind, size, mask: used.append(mask) or head(kind, size, mask)
    )
    with PolicyServer(Counter(), port=0) as server:
        channel = handshake.connected(server.url, 5.0, LIMIT, {})
        for _ in range(3):
            channel.send(encode({"imitate": {"kind": "ping", "id": 1}}), 5.0)
            channel.recv(5.0)
        channel.abort()
    ours = [mask for mask in used if mask is not None]
    assert set(ours) == keys if local else len(set(ours)) == 3


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


def test_abort_wakes_the_thread_that_waits(sockets):
    client = client_of(sockets[0])
    threading.Timer(0.2, client.abort).start()
    with pytest.raises(ClosedError):
        client.recv(600)
