"""Connections by which workers on other machines notice that their owner process is gone.

A worker sends a token at the beginning, and nothing else is ever sent. When the owner process ends in any way, the
operating system closes the connections; keep-alive probes detect a lost machine or network.
"""

import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

from imitate.system.channel.stream import same_token

PROBE_S = 5
"""Seconds between two probes of an idle connection."""

PROBES = 3
"""Number of unanswered probes after which the connection counts as lost."""

MAX_STRANGERS = 512
"""Largest number of connections without a token; beyond it the oldest is dropped."""

STRANGER_S = 30.0
"""Seconds in which a new connection must send its token."""
Address = tuple[str, int, str]


class Lifeline:
    """The owner process's end of the connections.

    Args:
        host: address of this machine at which workers reach it.

    Attributes:
        address: host, port and token for :func:`hold`.
    """

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = socket.create_server((host, 0), family=family, backlog=1024)
        self._token = secrets.token_hex(16)
        self.address: Address = (*self._server.getsockname()[:2], self._token)
        self._held: list[socket.socket] = []
        # connections without a complete token: the deadline, and the bytes received so far
        self._strangers: dict[socket.socket, tuple[float, bytes]] = {}
        self._closing, self._close = socket.socketpair()
        self._accepts = threading.Thread(target=self._accept, daemon=True)
        self._accepts.start()

    def close(self, patience_s: float = 2.0) -> None:
        """End all connections, and with them the workers that have not ended after ``patience_s``."""
        deadline = time.monotonic() + patience_s
        with suppress(OSError):  # already closed
            self._close.shutdown(
                socket.SHUT_RDWR
            )  # close() alone would leave the copies in forked processes open
        self._accepts.join()
        while not all(map(_has_ended, self._held)) and time.monotonic() < deadline:
            time.sleep(0.01)
        for end in (self._server, self._closing, self._close, *self._held):
            end.close()

    def _accept(self) -> None:
        """Accept connections until :meth:`close` is called, and then the connections that still wait."""
        over = False
        with suppress(OSError):
            while True:
                first = next((until for until, _ in self._strangers.values()), None)
                patience = None if first is None else max(0.0, first - time.monotonic())
                ready = wait(
                    [self._server, self._closing, *self._strangers], 0.0 if over else patience
                )
                over = over or self._closing in ready
                if over and len(ready) == 1:
                    break
                self._look_at(ready)
        for stranger in self._strangers:
            stranger.close()

    def _look_at(self, ready: list[Any]) -> None:
        """Keep connections with the right token; close those that are wrong, late or too many."""
        for stranger in [end for end in ready if end in self._strangers]:
            until, sent = self._strangers[stranger]
            data = b""
            with suppress(OSError):
                data = stranger.recv(len(self._token) - len(sent), socket.MSG_DONTWAIT)
            self._strangers[stranger] = until, sent + data
            if same_token((sent + data).decode("latin-1"), self._token):
                del self._strangers[stranger]
                self._held = [held for held in self._held if not _has_ended(held)]
                self._held.append(stranger)
            elif not data or len(sent + data) == len(self._token):
                # An earlier refusal would reveal how many characters of the token are right.
                self._strangers.pop(stranger)
                stranger.close()
        if self._server in ready:
            try:
                connection, _ = self._server.accept()
                self._strangers[connection] = time.monotonic() + STRANGER_S, b""
            except OSError:  # for example if all file descriptors are in use
                time.sleep(0.1)
        late = [end for end, (until, _) in self._strangers.items() if until <= time.monotonic()]
        for stranger in [*late, *list(self._strangers)[:-MAX_STRANGERS]]:
            if self._strangers.pop(stranger, None) is not None:
                stranger.close()


def hold(address: Address, end: Callable[[], None], timeout_s: float = 30.0) -> None:
    """Connect to the owner process, and call `end` in a thread once that process is gone.

    Raises:
        OSError: the owner process cannot be reached.
    """
    host, port, token = address
    connection = socket.create_connection((host, port), timeout=timeout_s)
    connection.sendall(token.encode())
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", PROBE_S),
        ("TCP_KEEPINTVL", PROBE_S),
        ("TCP_KEEPCNT", PROBES),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def watch() -> None:
        with suppress(OSError):
            while connection.recv(1):
                pass
        end()

    threading.Thread(target=watch, daemon=True).start()


def _has_ended(connection: socket.socket) -> bool:
    """Return true if the other side has closed the connection; then close this side too."""
    try:
        if connection.recv(1, socket.MSG_DONTWAIT):
            return False
    except BlockingIOError:
        return False
    except OSError:
        pass
    connection.close()
    return True
