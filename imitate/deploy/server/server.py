"""A policy server: WebSocket connections to one policy, with tokens, TLS, and limits on each client's use of memory.

Messages and sessions are in :mod:`imitate.deploy.server.session`.

Needs websockets and msgpack (``pip install "imitate[deploy]"``).
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import Any

from imitate.deploy.schema import HEADER
from imitate.deploy.server.handshake import Handshake
from imitate.deploy.server.session import (
    Ask,
    ChunkAsk,
    Desk,
    Prediction,
    Served,
    ServerStatistics,
    Session,
    one_line,
)
from imitate.errors import ClosedError, UserError, WireError
from imitate.system.channel.frames import FULL, Channel
from imitate.system.channel.messages import MAX_MESSAGE, decode_map, encode
from imitate.system.channel.stream import Budget, Lobby, Stream, same_token, shut

__all__ = ["HEADER", "Ask", "ChunkAsk", "PolicyServer", "Prediction", "Served", "ServerStatistics"]

LOG = logging.getLogger(__name__)
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_TOKEN_BYTES = 16
ACCEPT_S = 0.5
"""Seconds between two checks for signals, such as Ctrl-C, while no client connects."""
HANDSHAKE_S = 10.0
SEND_S = 10.0
PING_S = 20.0
MAX_WAITING = 32
"""Largest number of connections whose token has not been checked yet; a further one closes the oldest."""
MAX_TOGETHER = 64
"""Largest number of messages of a session that are read at once; further messages wait in the connection."""


MAX_HELD = 8 * MAX_MESSAGE
"""Memory in bytes for unfinished and waiting messages of all sessions; a session that exceeds it is closed."""


class _Waiting:
    """A connection whose token has not been checked yet."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.gone = sock, threading.Event()

    def secure(self, tls: ssl.SSLContext) -> None:
        """Perform the TLS handshake; :meth:`end` can interrupt it."""
        self.sock = tls.wrap_socket(self.sock, server_side=True, do_handshake_on_connect=False)
        Stream(self.sock).secure(time.monotonic() + HANDSHAKE_S)

    def end(self) -> None:
        """Close the connection, so that its thread stops waiting for the client and ends."""
        shut(self.sock)


class PolicyServer:
    """Serves one policy to several clients. Use as a context manager, or call :meth:`close`.

    Args:
        served: the policy.
        host: address to listen on; every address except loopback needs a ``token``.
        port: port number; 0 chooses a free one, see :attr:`port`.
        token: token that clients must send as ``Authorization: Bearer TOKEN`` (or openpi's ``Api-Key TOKEN``).
        tls: certificate and key, for ``wss://``.
        max_sessions: largest number of connections; further ones are refused with status 503.
        idle_s: seconds without a message after which a session is closed.
        max_bytes: size limit of one message.
        max_held: memory in bytes for unfinished and waiting messages of all sessions. A session that needs more is
            closed with status 1013.

    Raises:
        UserError: other machines can reach the host and there is no token, the token is too short, or the port is in
            use.
    """

    def __init__(
        self,
        served: Served,
        host: str = "127.0.0.1",
        port: int = 8000,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        max_sessions: int = 64,
        idle_s: float = 300.0,
        max_bytes: int = MAX_MESSAGE,
        max_held: int = MAX_HELD,
    ) -> None:
        if token is None and host not in _LOOPBACK:
            raise UserError(
                f"the server would listen on '{host}', which other machines can reach: give a token with "
                "--token-file, or listen on 127.0.0.1"
            )
        if token is not None and len(token) < _TOKEN_BYTES:
            raise UserError(
                f"the token has {len(token)} characters, but needs at least {_TOKEN_BYTES}: write a longer one into "
                "--token-file"
            )
        self._desk, self._token = Desk(served), token
        self.statistics = self._desk.statistics
        self._idle_s, self._max_bytes, self._max_sessions = idle_s, max_bytes, max_sessions
        self._tls, self.budget = tls, Budget(max_held)
        self._lock = threading.Lock()
        self._channels: set[Channel] = set()
        self.lobby = Lobby[_Waiting](MAX_WAITING, HANDSHAKE_S)
        self._closed = threading.Event()
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family, backlog=max_sessions)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"cannot listen on {host}:{port}: {reason}") from error
        self._listener.settimeout(ACCEPT_S)
        self.host, self.port = host, int(self._listener.getsockname()[1])
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Address for clients on this machine."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'wss' if self._tls else 'ws'}://{host}:{self.port}"

    def serve_forever(self) -> None:
        """Answer clients until another thread or a signal handler calls :meth:`close`."""
        while not self._closed.is_set():
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:  # so that a signal that came just before the call is handled
                continue
            except OSError as error:
                if self._closed.is_set():
                    return
                LOG.warning("a connection was not accepted: %s", error)
                self._closed.wait(0.1)  # for example if all file descriptors are in use
                continue
            self._start(_Waiting(sock))

    def _start(self, waiting: _Waiting) -> None:
        """Start the thread of a connection; if too many wait for their token to be checked, close the oldest."""
        for oldest in self.lobby.enter(waiting):
            self.statistics.count("refused")
            oldest.end()
            oldest.gone.wait(HANDSHAKE_S)
        try:
            threading.Thread(target=self._welcome, args=(waiting,), daemon=True).start()
        except RuntimeError as error:  # the system cannot start more threads
            LOG.warning("a connection was not accepted: %s", error)
            waiting.end()
            self._forget(waiting)

    def _forget(self, waiting: _Waiting) -> None:
        self.lobby.leave(waiting)
        waiting.gone.set()

    def __enter__(self) -> PolicyServer:
        self._thread = threading.Thread(
            target=self.serve_forever, name="policy server", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all sessions and free the port."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._listener.close()
        with self._lock:
            channels = list(self._channels)
        for channel in channels:
            channel.abort()
        if self._thread is not None:
            self._thread.join(5)

    # ---- connections -----------------------------------------------------------------------------

    def _welcome(self, waiting: _Waiting) -> None:
        """Handle one connection in its own thread."""
        try:
            waiting.sock.settimeout(HANDSHAKE_S)
            if self._tls is not None:
                waiting.secure(self._tls)
            handshake = Handshake(waiting.sock, HANDSHAKE_S, self._max_bytes, self.budget)
            channel = self._admitted(handshake)
        except (OSError, ValueError):
            waiting.sock.close()
            return
        finally:
            self._forget(waiting)
        if channel is None:
            return
        try:
            self.serve(channel)
        finally:
            with self._lock:
                self._channels.discard(channel)
            self.budget.leave(channel)

    def _admitted(self, handshake: Handshake) -> Channel | None:
        """Answer ``/healthz``; refuse clients without the token, or beyond the limit on sessions; admit others.

        Returns the channel of an admitted client, otherwise None.
        """
        if handshake.request.path == "/healthz":
            handshake.answer(200, "OK\n")
            return None
        words = handshake.request.headers.get_all("Authorization")
        if not self.knows_token(words[0] if len(words) == 1 else ""):
            self.statistics.count("refused")
            handshake.answer(401, "wrong or missing token\n")
            return None
        with self._lock:
            free = len(self._channels) < self._max_sessions
            if free:
                self._channels.add(handshake.channel)
        if not free:
            self.statistics.count("refused")
            handshake.answer(503, "all sessions are in use\n")
            return None
        channel = None
        try:
            channel = handshake.accept()
        finally:
            if channel is None:
                with self._lock:
                    self._channels.discard(handshake.channel)
        return channel

    def knows_token(self, header: str) -> bool:
        """Return True if the header ``Authorization`` contains the token, or if no token is needed."""
        if self._token is None:
            return True
        scheme, _, word = header.partition(" ")
        return same_token(word.strip(), self._token) and scheme.lower() in ("bearer", "api-key")

    def serve(self, channel: Channel) -> None:
        """Answer an admitted client until its connection ends, in the caller's thread."""
        session, number = Session(self._desk), self.statistics.count("sessions")
        try:
            channel.send(encode(self._desk.metadata(number, self._max_bytes)), SEND_S)
            while True:
                for reply in session.answers(self._received(channel, session)):
                    channel.send(reply, SEND_S)
        except TimeoutError:
            channel.close(1001, "no message for too long")
        except ClosedError:
            channel.abort()
        except WireError as error:
            self.statistics.count("errors")
            channel.close(1013 if str(error) == FULL else 1007, one_line(error, 100))
        except BaseException:
            channel.abort()
            raise
        finally:
            self.budget.leave(session)

    def _received(self, channel: Channel, session: Session) -> list[dict[str, Any]]:
        """Return the waiting messages: at least one, at most :data:`MAX_TOGETHER`."""
        size = 0

        def reserve(more: int) -> None:
            nonlocal size
            size += more
            if not self.budget.hold(session, size):
                raise WireError(FULL)

        self.budget.leave(session)
        messages = [decode_map(self._awaited(channel), self._max_bytes, reserve)]
        with suppress(TimeoutError):
            while not channel.emptied and len(messages) < MAX_TOGETHER and size < self._max_bytes:
                messages.append(decode_map(channel.recv(0.0), self._max_bytes, reserve))
        return messages

    def _awaited(self, channel: Channel) -> memoryview | str:
        """Return the next message; send pings to a client that is silent."""
        waited = 0.0
        while True:
            patience = min(PING_S, self._idle_s - waited)
            try:
                return channel.recv(patience)
            except TimeoutError:
                waited += patience
                if waited >= self._idle_s:
                    raise
                channel.ping(SEND_S)
