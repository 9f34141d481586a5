"""A TCP proxy that delays, replaces or drops bytes on request."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class Proxy:
    """Proxy between clients and a server on this machine; a context manager.

    Args:
        port: port of the server.

    Attributes:
        port: port for clients.
        stalled: the blocked directions: ``up`` (to the server), ``down`` (to the clients).
        instead: bytes that replace the server's next bytes to clients, or None to replace nothing.
        delay_s: delay of the server's bytes in seconds.
    """

    def __init__(self, port: int) -> None:
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.stalled: set[str] = set()
        self.instead: bytes | None = None
        self.delay_s = 0.0
        self._closed = threading.Event()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """Return the address for clients."""
        return f"ws://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._server))
                self._sockets += [near, far]
                for source, sink, way in ((near, far, "up"), (far, near, "down")):
                    threading.Thread(
                        target=self._pass, args=(source, sink, way), daemon=True
                    ).start()

    def _pass(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**20):
                while way in self.stalled and not self._closed.wait(0.005):
                    pass
                if way == "down":
                    time.sleep(self.delay_s)
                    data, self.instead = self.instead or data, None
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End all connections."""
        self._closed.set()
        for sock in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
