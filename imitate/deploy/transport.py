"""WebSocket connections that block, with a deadline on everything and without threads of their own.

The protocol (handshake, frames, masks, pings, closing) is that of the library ``websockets``; here it meets a socket.
A message is read and answered in the thread that asked for it, which halves the round trip of the library's own
connections, whose reading thread has to wake the asking one.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidURI
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import Protocol, State
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from imitate.errors import UserError

_READ = 2**20
_BUFFER = 2**21
_LARGE = 2**14
_CLOSE_S = 0.5


class ClosedError(ConnectionError):
    """The connection has ended; the message says by whom and why."""


class RefusedError(ConnectionError):
    """The server answered the handshake with an HTTP status.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"refused with status {status}")
        self.status = status


class Channel:
    """One connection. Each method belongs to one thread at a time.

    Args:
        sock: connected, TLS done.
        protocol: of the library, before the handshake.
    """

    def __init__(self, sock: socket.socket, protocol: Protocol) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, buffer, _BUFFER)
        self._socket, self._protocol = sock, protocol
        self._events: deque[Any] = deque()
        self._parts: list[bytes] = []
        self._text = False

    # ---- messages --------------------------------------------------------------------------------

    def send(self, data: bytes | str, timeout_s: float) -> None:
        """Send one message.

        Raises:
            TimeoutError: the other side did not read it in time; the connection is then of no more use.
            ClosedError: the connection has ended.
        """
        if self._protocol.state is not State.OPEN:
            raise ClosedError(self._reason())
        if isinstance(data, str):
            self._protocol.send_text(data.encode())
        else:
            self._protocol.send_binary(data)
        self.flush(timeout_s)

    def recv(self, timeout_s: float) -> bytes | str:
        """The next message.

        Raises:
            TimeoutError: none came in time.
            ClosedError: the connection has ended, or the message is larger than allowed.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            while self._events:
                message = self._message(self._events.popleft())
                if message is not None:
                    return message
            self._read(deadline)

    def ping(self, timeout_s: float) -> None:
        """Ask for a sign of life, which :meth:`recv` reads."""
        self._protocol.send_ping(b"")
        self.flush(timeout_s)

    def close(self, code: int = 1000, reason: str = "") -> None:
        """End the connection, politely where the other side still reads."""
        with contextlib.suppress(OSError, ClosedError):
            if self._protocol.state is State.OPEN:
                self._protocol.send_close(code, reason)
                self.flush(_CLOSE_S)
                # What the other side has sent is read to its end, or it would see a reset and not the reason.
                deadline = time.monotonic() + _CLOSE_S
                while True:
                    self._read(deadline)
        self.abort()

    def abort(self) -> None:
        """End the connection at once."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    # ---- protocol --------------------------------------------------------------------------------

    def next_event(self, deadline: float) -> Any:
        """The next event of the handshake: a request or a response."""
        while not self._events:
            self._read(deadline)
        return self._events.popleft()

    def _message(self, frame: Frame) -> bytes | str | None:
        """The whole message that a frame ends; None where it ends none."""
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._text, self._parts = frame.opcode is Opcode.TEXT, []
        elif frame.opcode is not Opcode.CONT:
            return None
        self._parts.append(bytes(frame.data))
        if not frame.fin:
            return None
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        return data.decode("utf-8", "replace") if self._text else data

    def _read(self, deadline: float) -> None:
        """Wait for data and let the protocol take it."""
        try:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.0))
            data = self._socket.recv(_READ)
            if len(data) >= _LARGE:
                data = self._with_more(data)
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            raise TimeoutError("nothing was received in time") from None
        except (OSError, ValueError) as error:
            raise ClosedError(f"the connection was lost ({type(error).__name__})") from error
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        self.flush(_CLOSE_S)
        self._events.extend(self._protocol.events_received())
        ended = self._protocol.state in (State.CLOSING, State.CLOSED)
        if not data or (ended and not self._events):
            raise ClosedError(self._reason())

    def _with_more(self, data: bytes) -> bytes:
        """Data of a large message together with what has arrived since: the protocol's parser likes large pieces."""
        parts = [data]
        self._socket.settimeout(0.0)
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            while len(parts[-1]) > 0:
                parts.append(self._socket.recv(_READ))
        return b"".join(parts)

    def flush(self, timeout_s: float) -> None:
        """Send what the protocol wants to send."""
        for data in self._protocol.data_to_send():
            try:
                if not data:
                    self._socket.shutdown(socket.SHUT_WR)
                    continue
                self._socket.settimeout(timeout_s)
                self._socket.sendall(data)
            except TimeoutError:
                raise TimeoutError("the other side does not read") from None
            except (OSError, ValueError) as error:
                raise ClosedError(f"the connection was lost ({type(error).__name__})") from error

    def _reason(self) -> str:
        closed = self._protocol.close_rcvd or self._protocol.close_sent
        if closed is None:
            return "the connection was lost"
        return f"the connection was ended: {closed.reason or closed.code}"


def connected(
    url: str,
    timeout_s: float,
    max_bytes: int,
    headers: Mapping[str, str],
    tls: ssl.SSLContext | None = None,
) -> Channel:
    """A connection to a server.

    Args:
        url: ``ws://host:port`` or ``wss://host:port``.
        timeout_s: for everything together.
        max_bytes: of one message.
        headers: of the handshake.
        tls: context for ``wss``; the usual certificates by default.

    Raises:
        UserError: the URL is malformed.
        RefusedError: the server answered with another status than it should.
        OSError: it was not reached; TimeoutError: not in time.
    """
    deadline = time.monotonic() + timeout_s
    try:
        uri = parse_uri(url)
    except (InvalidURI, ValueError) as error:
        raise UserError(
            f"'{url}' is no address of a policy server: wanted ws://host:port or wss://host:port"
        ) from error
    sock = socket.create_connection((uri.host, uri.port), timeout=timeout_s)
    try:
        if uri.secure:
            sock = (tls or ssl.create_default_context()).wrap_socket(sock, server_hostname=uri.host)
        protocol = ClientProtocol(uri, max_size=max_bytes)
        channel = Channel(sock, protocol)
        request = protocol.connect()
        for name, value in headers.items():
            request.headers[name] = value
        protocol.send_request(request)
        channel.flush(timeout_s)
        response = channel.next_event(deadline)
        if isinstance(response, Response) and response.status_code != 101:
            raise RefusedError(response.status_code)
        if protocol.handshake_exc is not None:
            raise ClosedError(str(protocol.handshake_exc))
    except BaseException:
        sock.close()
        raise
    return channel


class Handshake:
    """The server's side of a new connection, before it is admitted.

    Args:
        sock: accepted.
        timeout_s: until the request has to be there.
        max_bytes: of one message.
    """

    def __init__(self, sock: socket.socket, timeout_s: float, max_bytes: int) -> None:
        self._protocol = ServerProtocol(max_size=max_bytes)
        self.channel = Channel(sock, self._protocol)
        self._timeout_s = timeout_s
        event = self.channel.next_event(time.monotonic() + timeout_s)
        if not isinstance(event, Request):
            raise ClosedError("no request")
        self.request: Request = event

    def accept(self) -> Channel | None:
        """Admit the client; None where its request was no WebSocket handshake."""
        response = self._protocol.accept(self.request)
        self._protocol.send_response(response)
        self.channel.flush(self._timeout_s)
        return self.channel if response.status_code == 101 else None

    def answer(self, status: int, text: str) -> None:
        """Answer with a status and a line of text, and end the connection."""
        self._protocol.send_response(self._protocol.reject(status, text))
        with contextlib.suppress(OSError):
            self.channel.flush(self._timeout_s)
        self.channel.close()
