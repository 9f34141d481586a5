"""WebSocket handshake of client and server; the package ``websockets`` creates and checks the headers."""

import contextlib
import os
import re
import socket
import ssl
import time
from collections.abc import Mapping

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidURI
from websockets.http11 import Request
from websockets.protocol import Protocol
from websockets.server import ServerProtocol
from websockets.uri import WebSocketURI, parse_uri

from imitate.errors import ClosedError, UserError
from imitate.system.channel.frames import Channel, no_mask
from imitate.system.channel.stream import Budget, Stream

_END = b"\r\n\r\n"
_LONGEST_HEAD = 2**16
_REST_S = 0.5
_LOCAL = frozenset({"127.0.0.1", "::1"})


class RefusedError(ConnectionError):
    """The server answered the handshake with an HTTP status.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"refused with status {status}")
        self.status = status


def connected(
    url: str,
    timeout_s: float,
    max_bytes: int,
    headers: Mapping[str, str],
    tls: ssl.SSLContext | None = None,
) -> Channel:
    """Connect to a server.

    Each frame is masked by a new random key, as RFC 6455 requires because of proxies. Connections within this machine
    have no proxies and use a key of zeros, which every server accepts and which saves a copy.

    Args:
        url: ``ws://host:port`` or ``wss://host:port``.
        timeout_s: seconds for the whole handshake.
        max_bytes: size limit of one message.
        headers: additional headers of the handshake.
        tls: TLS context for ``wss``; by default the system's authorities are trusted.

    Raises:
        UserError: the URL is malformed.
        RefusedError: the server answered with an unexpected status.
        OSError: the server cannot be reached; TimeoutError if it does not answer in time.
    """
    deadline = time.monotonic() + timeout_s
    try:
        uri = parse_uri(url)
    except (InvalidURI, ValueError) as error:
        raise UserError(
            f"'{url}' is not the address of a policy server: wanted ws://host:port or "
            "wss://host:port"
        ) from error
    sock = socket.create_connection((uri.host, uri.port), timeout=timeout_s)
    try:
        local = sock.getpeername()[0] in _LOCAL
        if uri.secure:
            sock.settimeout(max(deadline - time.monotonic(), 0.001))
            sock = (tls or ssl.create_default_context()).wrap_socket(sock, server_hostname=uri.host)
        stream = Stream(sock)
        rest = _ask(stream, uri, headers, deadline)
    except BaseException:
        sock.close()
        raise
    return Channel(stream, max_bytes, no_mask if local else _random_mask, rest)


def _random_mask() -> bytes:
    return os.urandom(4)


def _ask(stream: Stream, uri: WebSocketURI, headers: Mapping[str, str], deadline: float) -> bytes:
    """Send the request for a WebSocket; return the bytes that the server sent after its answer."""
    protocol = ClientProtocol(uri)
    request = protocol.connect()
    for name, value in headers.items():
        request.headers[name] = value
    protocol.send_request(request)
    _flush(stream, protocol, deadline)
    try:
        head, rest = _head(stream, deadline)
    except ClosedError as error:
        hint = (
            ""
            if uri.secure
            else ("; the address of a server with a certificate begins with wss://")
        )
        raise ClosedError(f"the handshake was not answered{hint}") from error
    words = head.split()
    if (
        len(words) < 2
        or not words[0].startswith(b"HTTP/")
        or not re.fullmatch(rb"[0-9]{3}", words[1])
    ):
        raise ClosedError("the answer is not from a web server: is another program using the port?")
    if words[1] != b"101":
        raise RefusedError(int(words[1]))
    protocol.receive_data(head)
    if protocol.handshake_exc is not None:
        raise ClosedError(str(protocol.handshake_exc))
    return rest


class Handshake:
    """The server's side of a new connection, before it is admitted.

    Args:
        sock: accepted socket.
        timeout_s: seconds within which the request must arrive.
        max_bytes: size limit of one message.
        budget: memory in bytes for unfinished messages that all connections share; without limit by default.
    """

    def __init__(
        self,
        sock: socket.socket,
        timeout_s: float,
        max_bytes: int,
        budget: Budget | None = None,
    ) -> None:
        self._protocol = ServerProtocol()
        self._stream, self._timeout_s = Stream(sock), timeout_s
        head, rest = _head(self._stream, time.monotonic() + timeout_s)
        self._protocol.receive_data(head)
        events = self._protocol.events_received()
        if not events or not isinstance(events[0], Request):
            raise ClosedError("no request")
        self.request: Request = events[0]
        self.channel = Channel(self._stream, max_bytes, data=rest, budget=budget)

    def accept(self) -> Channel | None:
        """Admit the client; return None if its request was not a WebSocket handshake."""
        response = self._protocol.accept(self.request)
        self._protocol.send_response(response)
        _flush(self._stream, self._protocol, time.monotonic() + self._timeout_s)
        if response.status_code == 101:
            return self.channel
        self._end()
        return None

    def answer(self, status: int, text: str) -> None:
        """Answer with a status and a line of text, and end the connection."""
        self._protocol.send_response(self._protocol.reject(status, text))
        with contextlib.suppress(OSError):
            _flush(self._stream, self._protocol, time.monotonic() + self._timeout_s)
        self._end()

    def _end(self) -> None:
        """Close the connection after the client has read the answer."""
        self._stream.end_writing()
        deadline, into = time.monotonic() + _REST_S, memoryview(bytearray(_LONGEST_HEAD))
        with contextlib.suppress(OSError):
            while time.monotonic() < deadline:
                self._stream.read(into, deadline)
        self._stream.abort()


def _head(stream: Stream, deadline: float) -> tuple[bytes, bytes]:
    """Read a request or answer up to its empty line; also return the bytes received after it."""
    buffer, end = bytearray(_LONGEST_HEAD), 0
    while True:
        if end == len(buffer):
            raise ClosedError(
                f"a handshake is longer than {_LONGEST_HEAD} bytes, so the other side is not a policy "
                "server or its client"
            )
        end += stream.read(memoryview(buffer)[end:], deadline)
        if not chr(buffer[0]).isalpha():  # for example from a client that uses TLS
            raise ClosedError("the handshake is not HTTP: use ws:// for a server without TLS")
        place = buffer.find(_END, 0, end)
        if place != -1:
            place += len(_END)
            return bytes(buffer[:place]), bytes(buffer[place:end])


def _flush(stream: Stream, protocol: Protocol, deadline: float) -> None:
    """Send the pending bytes of the protocol."""
    stream.write(protocol.data_to_send())
    stream.flush(deadline)
