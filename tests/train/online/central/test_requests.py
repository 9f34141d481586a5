"""Connections between environment workers and a policy worker."""

import fcntl
import socket
import struct
import termios
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from imitate.errors import WireError
from imitate.system.channel.frames import BINARY, NO_MASK, header_of
from imitate.system.channel.messages import MAX_OBJECTS, encode
from imitate.system.channel.stream import Lobby
from imitate.train.online.central import requests
from imitate.train.online.central.requests import GREETING_BYTES, PolicyChannel, RequestServer

TOKEN = b"t" * 32


class Doubling:
    """Serves double the numbers of a request, and remembers how many came together."""

    def __init__(self, most=100):
        self.server = RequestServer("127.0.0.1", TOKEN)
        self.address, self.together, self.most = self.server.address, [], most
        self.gate, self.over = threading.Event(), False
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        while not self.over:
            requests = self.server.requests(self.most)
            if requests:
                self.together.append(len(requests))
            for request in requests:
                self.server.answer(request, {"x": 2 * request.content["x"]})
                if "hold" in request.content:
                    self.gate.wait()

    def close(self):
        self.over = True
        self.gate.set()
        self.server.wake()
        self.thread.join()
        self.server.close()


@pytest.fixture
def served():
    opened = []

    def make(**kwargs):
        opened.append(Doubling(**kwargs))
        return opened[-1]

    yield make
    for service in opened:
        service.close()


def connect(service, token=TOKEN, timeout_s=600.0):
    return PolicyChannel(service.address, token, lambda: None, timeout_s)


def test_answers_come_in_the_order_of_the_requests(served):
    channel = connect(served())
    for number in range(3):
        channel.ask({"x": np.array([number])})
    assert [channel.answer()["x"].tolist() for _ in range(3)] == [[0], [2], [4]]
    channel.close()


def wait_until_received(channel):
    """Until what was sent is at the other side, as its acknowledgement says."""
    unsent = b"1"
    while any(unsent):
        unsent = fcntl.ioctl(channel._channel, termios.TIOCOUTQ, bytes(4))
        time.sleep(0.001)


@pytest.mark.parametrize(("most", "expected"), [(100, [4]), (3, [3, 1])])
def test_requests_that_came_while_it_computed_are_one_batch(served, most, expected):
    service = served(most=most)
    channels = [connect(service) for _ in range(4)]
    channels[0].ask({"x": np.zeros(1), "hold": True})
    channels[0].answer()
    for number, channel in enumerate(channels):
        channel.ask({"x": np.array([number])})
    for channel in channels:
        wait_until_received(channel)
    service.gate.set()
    for number, channel in enumerate(channels):
        assert channel.answer()["x"].tolist() == [2 * number]
        channel.close()
    assert service.together == [1, *expected]


def test_large_messages_pass_both_ways_at_once(served):
    channel = connect(served())
    pictures = np.random.default_rng(0).integers(0, 100, (3, 2_000_000), dtype=np.uint8)
    for picture in pictures:
        channel.ask({"x": picture})
    for picture in pictures:
        assert np.array_equal(channel.answer()["x"], 2 * picture)
    channel.close()


def test_who_does_not_know_the_token_gets_no_answer(served):
    service = served()
    with pytest.raises(WireError, match="connection"):
        connect(service, token=b"f" * 32)
    channel = connect(service)
    channel.ask({"x": np.ones(1)})
    assert channel.answer()["x"].tolist() == [2.0]
    channel.close()


def framed(data, mask=NO_MASK):
    return header_of(BINARY, len(data), mask) + data


def test_a_server_that_does_not_know_the_token_is_refused():
    listener = socket.create_server(("127.0.0.1", 0))

    def pretend():
        sock, _ = listener.accept()
        for message in ({"nonce": "1"}, {"proof": "f" * 64}):
            sock.sendall(framed(encode(message), mask=None))
        sock.recv(1000)
        sock.close()

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(WireError, match="does not know the token"):
        PolicyChannel(listener.getsockname(), TOKEN, lambda: None, 600.0)
    thread.join()
    listener.close()


TOO_LARGE = header_of(BINARY, GREETING_BYTES + 1, NO_MASK)  # known by its header


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * 100,
        b"",
        framed(encode({"proof": "f" * 64, "nonce": "1"})),
        framed(encode({"proof": np.zeros(2)})),
        framed(encode("no map")),
        framed(b"\x81\xa5proof\xa2\xed\xa0"),  # no UTF-8
        framed(b"\x91" * GREETING_BYTES),
        TOO_LARGE,
        b"\x89\xfe\0\x7d" + NO_MASK,  # a sign of life of 125 bytes, of a longer form than allowed
    ],
)
def test_garbage_does_not_disturb_the_others(served, data):
    service = served()
    channel, came = connect(service), b""
    with socket.create_connection(service.address) as sock:
        sock.sendall(data)
        if not data:
            sock.shutdown(socket.SHUT_WR)
        sock.settimeout(600.0)
        while True:  # its greeting, and then the end
            try:
                more = sock.recv(1000)
            except ConnectionResetError:
                break
            came += more
            if not more:
                break
        assert (b"the message is too large" in came) is (data == TOO_LARGE)
        channel.ask({"x": np.ones(1)})
        assert channel.answer()["x"].tolist() == [2.0]
    channel.close()


@pytest.mark.parametrize(("most", "seconds"), [(3, 600.0), (100, 0.0)])
def test_silent_strangers_go_and_leave_room_for_others(served, most, seconds):
    service = served()
    known = connect(service)
    service.server._strangers = Lobby(most, seconds)
    silent = [socket.create_connection(service.address) for _ in range(8)]
    for oldest in silent[: 8 - most] if seconds else silent:
        while oldest.recv(1000):
            pass
    service.server._strangers = Lobby(100, 600.0)
    for channel in (known, connect(service)):
        channel.ask({"x": np.ones(1)})
        assert channel.answer()["x"].tolist() == [2.0]
        channel.close()
    for sock in silent:
        sock.close()


def test_a_known_client_is_bounded_too(served, monkeypatch):
    service = served()
    channel, other = connect(service), connect(service)
    channel.ask({"x": [[0] * 4000] * (MAX_OBJECTS // 4000 + 1)})
    with pytest.raises(WireError, match="connection"):
        channel.answer()
    monkeypatch.setattr(requests, "MAX_MESSAGE", 1000)
    with pytest.raises(WireError, match="at most 1000 are allowed"):
        other.ask({"x": np.zeros(1000)})
    other.ask({"x": np.ones(1)})
    assert other.answer()["x"].tolist() == [2.0]
    channel.close()
    other.close()


def test_a_client_that_is_gone_before_it_is_greeted_disturbs_nobody():
    server = RequestServer("127.0.0.1", TOKEN)
    sock = socket.create_connection(server.address)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()  # with a reset, so that sending fails
    assert server.requests(1) == []
    server.close()


def test_a_sender_that_never_pauses_is_read_in_parts(monkeypatch):
    monkeypatch.setattr(requests, "MAX_TOGETHER", 3)
    monkeypatch.setattr(requests, "MAX_REQUESTS", 5)
    server = RequestServer("127.0.0.1", TOKEN)
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(connect, server)
        for _ in ("it comes", "it shows the token"):
            server.requests(0)
        channel = connecting.result()
    for number in range(20):
        channel.ask({"x": number})
    wait_until_received(channel)
    taken, pending = [], requests.PendingRequest
    monkeypatch.setattr(requests, "PendingRequest", lambda *of: taken.append(of) or pending(*of))
    found = [server.requests(0) or len(taken) for _ in range(4)]
    assert found == [3, 6, 6, 6]
    asked = []
    while len(asked) < 20:
        asked += [request.content["x"] for request in server.requests(2)]
    assert asked == list(range(20))
    channel.close()
    server.close()


def test_a_client_that_does_not_read_stops_nobody(served):
    service = served()
    lazy, other = connect(service), connect(service)

    def ask():
        with suppress(WireError):  # it is closed at the end
            for _ in range(4):
                lazy.ask({"x": np.zeros(8_000_000, dtype=np.uint8)})

    threading.Thread(target=ask, daemon=True).start()
    while not service.together:  # none of its first answer is read
        time.sleep(0.001)
    other.ask({"x": np.ones(1)})
    assert other.answer()["x"].tolist() == [2.0]
    lazy.close()
    other.close()


def test_a_server_that_is_gone_is_told(served):
    service = served()
    channel = connect(service)
    service.close()
    with pytest.raises(WireError, match="connection"):
        channel.ask({"x": np.ones(1)})
        channel.answer()
    with pytest.raises(WireError, match="cannot connect to 127.0.0.1"):
        connect(service)
    service.server = RequestServer("127.0.0.1", TOKEN)  # for the fixture
    channel.close()


def test_waiting_gives_signs_of_life_and_ends(served):
    class EnoughError(Exception):
        pass

    def beat():
        beats.append(1)
        if len(beats) > 3:
            raise EnoughError

    service, beats = served(), []
    patient = PolicyChannel(service.address, TOKEN, beat, 600.0)
    with pytest.raises(EnoughError):
        patient.answer()
    hasty = PolicyChannel(service.address, TOKEN, lambda: None, 600.0)
    hasty._timeout_s = 0.0  # after the greeting, which takes what it takes
    with pytest.raises(WireError, match="did not answer within 0 s"):
        hasty.answer()
    patient.close()
    hasty.close()
