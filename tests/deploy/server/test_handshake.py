"""Handshakes over real connections within this machine."""

import contextlib
import socket
import threading
import time

import pytest

from imitate.deploy.server.handshake import Handshake, RefusedError, connected
from imitate.errors import ClosedError, UserError
from imitate.system.channel.stream import Stream
from tests.refusals import refused

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
UPGRADE = (
    "GET / HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
ACCEPTED = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # RFC 6455, section 1.3


@pytest.fixture
def serve():
    """Start a server that handles one connection by a function; return its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads = []

    def start(handle):
        def work():
            sock, _ = listener.accept()
            with sock:
                handle(sock)

        threads.append(threading.Thread(target=work, daemon=True))
        threads[-1].start()
        return f"ws://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for thread in threads:
        thread.join(10)
    listener.close()


def connect(url, **headers):
    return connected(url, 10.0, 1000, headers)


def test_a_client_is_admitted_and_both_sides_speak(serve):
    seen = {}

    def handle(sock):
        handshake = Handshake(sock, 10.0, 1000)
        seen.update(handshake.request.headers.raw_items())
        channel = handshake.accept()
        assert channel is handshake.channel
        channel.send(channel.recv(10.0), 10.0)
        channel.close()

    channel = connect(serve(handle), Token="secret")
    channel.send(b"question", 10.0)
    assert bytes(channel.recv(10.0)) == b"question"
    channel.abort()
    assert seen["Token"] == "secret"


def test_a_refusal_has_its_status(serve):
    url = serve(lambda sock: Handshake(sock, 10.0, 1000).answer(403, "wrong token"))
    with pytest.raises(RefusedError, match="refused with status 403") as caught:
        connect(url)
    assert caught.value.status == 403


def test_an_answer_may_lack_a_reason(serve):
    url = serve(lambda sock: sock.recv(10_000) and sock.sendall(b"HTTP/1.1 404\r\n\r\n"))
    with pytest.raises(RefusedError, match="refused with status 404"):
        connect(url)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "the handshake was not answered; the address of a server with a certificate begins"),
        (b"SSH-2.0 x\r\n\r\n", "the answer is not from a web server"),
        (b"HTTP/1.1\r\n\r\n", "the answer is not from a web server"),
        (b"HTTP/1.1 1000 x\r\n\r\n", "the answer is not from a web server"),
        (b"\x16\x03\x01", "the handshake was not answered"),
        (UPGRADE.replace("GET / HTTP/1.1", "HTTP/1.1 101 Go").encode(), "Sec-WebSocket-Accept"),
        (b"H" * 2**16, "the handshake was not answered"),
    ],
)  # fmt: skip
def test_answers_that_are_none(serve, answer, words):
    ended = threading.Event()

    def handle(sock):
        sock.recv(10_000)
        sock.sendall(answer)
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(2.0)
        if sock.recv(1) == b"":
            ended.set()

    with refused(words, error=ClosedError) as caught:
        connect(serve(handle))
    assert ended.wait(2.0) and caught is not None  # closed at once, although the error is kept


@pytest.mark.parametrize("url", ["here:80", "http://here", "ws://:80", "ws://here:99999"])
def test_other_addresses_are_refused(url):
    with refused(f"'{url}' is not the address|ws://host:port", error=UserError):
        connect(url)


def test_a_server_that_says_nothing_is_left_in_time(serve):
    done = threading.Event()
    url = serve(lambda sock: done.wait(10))
    began = time.monotonic()
    with pytest.raises((ClosedError, TimeoutError)):
        connected(url, 0.2, 1000, {})
    assert 0.15 < time.monotonic() - began < 5
    done.set()


def admitted(text):
    """Send text to the server's side; return the first message, the request and the answer."""
    listener = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(listener.getsockname())
    far, _ = listener.accept()
    with listener, near, far:
        near.sendall(text)
        near.shutdown(socket.SHUT_WR)
        handshake = Handshake(far, 10.0, 1000)
        channel = handshake.accept()
        early = None if channel is None else bytes(channel.recv(10.0))
        return early, handshake.request, near.recv(10_000)


def test_the_key_is_answered_and_early_bytes_are_kept():
    message = b"\x82\x82\x00\x00\x00\x00ab"  # binary, 2 bytes, masked by zeros
    early, _, answer = admitted(UPGRADE.encode() + message)
    assert answer.startswith(b"HTTP/1.1 101") and ACCEPTED.encode() in answer
    assert early == b"ab"


def test_a_request_without_a_websocket_is_answered_and_closed():
    early, request, answer = admitted(b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n")
    assert early is None and request.path == "/health"
    assert answer.startswith(b"HTTP/1.1 426")


def test_a_refused_client_may_finish_sending_before_it_reads(serve):
    url = serve(lambda sock: Handshake(sock, 10.0, 1000).answer(403, "no"))
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
        client.sendall(UPGRADE.encode() + bytes(8_000_000))
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(10_000), b""))
    assert answer.startswith(b"HTTP/1.1 403") and answer.endswith(b"no")


def test_each_part_of_a_handshake_has_the_whole_time(serve, monkeypatch):
    left_s, flush = [], Stream.flush

    def noted(stream, deadline):
        left_s.append(deadline - time.monotonic())
        flush(stream, deadline)

    monkeypatch.setattr(Stream, "flush", noted)
    for finish in (lambda h: h.accept(), lambda h: h.answer(403, "no")):
        left_s.clear()
        with contextlib.suppress(RefusedError):
            connect(serve(lambda sock, finish=finish: finish(Handshake(sock, 9.0, 1000)))).abort()
        assert [round(seconds) for seconds in left_s[:2]] == [10, 9]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"\x16\x03\x01", "the handshake is not HTTP"),
        (b"G" * 2**16, "a handshake is longer than 65536 bytes"),
        (b"GET / HTTP/1.1\r\nno header\r\n\r\n", "no request"),
    ],
)
def test_requests_that_are_none(text, words):
    with refused(words, error=ClosedError):
        admitted(text)


def test_after_an_answer_writing_ends_before_the_connection_is_released(serve, monkeypatch):
    calls = []
    for name in ("flush", "end_writing", "abort"):
        real = getattr(Stream, name)

        def noted(stream, *args, name=name, real=real):
            calls.append(name)
            return real(stream, *args)

        monkeypatch.setattr(Stream, name, noted)
    done = threading.Event()

    def handle(sock):
        handshake = Handshake(sock, 10.0, 1000)
        calls.clear()
        handshake.answer(403, "no")
        done.set()

    url = serve(handle)
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
        client.sendall(UPGRADE.encode())
        client.shutdown(socket.SHUT_WR)
        assert done.wait(10.0)
    assert calls == ["flush", "end_writing", "abort"]
