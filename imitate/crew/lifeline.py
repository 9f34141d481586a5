"""Connections that tell workers on other machines when the process that they work for is gone.

Nothing is sent through them. Their end is noticed when the process ends, however it ends, because the system closes
them; keep-alive probes notice it when its machine or the network is gone.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait

PROBE_S, PROBES = 5, 3
"""Seconds between two probes of an idle connection, and unanswered ones after which it counts as lost."""


class Lifeline:
    """Open end of connections, in the process that is worked for.

    Args:
        host: address of this machine at which workers reach it.

    Attributes:
        address: host and port for :func:`hold`.
    """

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = socket.create_server((host, 0), family=family, backlog=1024)
        self.address: tuple[str, int] = self._server.getsockname()[:2]
        self._held: list[socket.socket] = []
        self._closing, self._close = socket.socketpair()
        self._accepts = threading.Thread(target=self._accept, daemon=True)
        self._accepts.start()

    def close(self, patience_s: float = 2.0) -> None:
        """End all connections, and with them the workers that have not ended after so many seconds."""
        deadline = time.monotonic() + patience_s
        with suppress(OSError):  # closed before
            self._close.shutdown(
                socket.SHUT_RDWR
            )  # a close alone leaves the copies of forked processes open
        self._accepts.join()
        while not all(map(_has_ended, self._held)) and time.monotonic() < deadline:
            time.sleep(0.01)
        for end in (self._server, self._closing, self._close, *self._held):
            end.close()

    def _accept(self) -> None:
        """Accept connections, at last those that were waiting when :meth:`close` was called."""
        with suppress(OSError):
            while self._server in wait([self._server, self._closing]):
                connection, _ = self._server.accept()
                self._held = [held for held in self._held if not _has_ended(held)]
                self._held.append(connection)


def hold(address: tuple[str, int], end: Callable[[], None], timeout_s: float = 30.0) -> None:
    """Connect to a process, and call `end` in a thread once it is gone.

    Raises:
        OSError: it cannot be reached.
    """
    connection = socket.create_connection(address, timeout=timeout_s)
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
    """Return true, and close it, where the other end is closed."""
    try:
        if connection.recv(1, socket.MSG_DONTWAIT):
            return False
    except BlockingIOError:
        return False
    except OSError:
        pass
    connection.close()
    return True
