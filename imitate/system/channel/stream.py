"""Sockets on which every call has a deadline, admission of connections by tokens, and their common memory limit."""

import contextlib
import hmac
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from imitate.errors import ClosedError

Buffer = bytes | bytearray | memoryview
_MOST_VIEWS = 1024
"""Largest number of buffers that the operating system sends with one call."""


class Stream:
    """A connected socket on which every call has a deadline.

    Args:
        sock: connected socket after the TLS handshake.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(0.0)
        self._socket, self.tls = sock, isinstance(sock, ssl.SSLSocket)
        self._reading, self._writing = select.poll(), select.poll()
        self._reading.register(sock, select.POLLIN)
        self._writing.register(sock, select.POLLOUT)
        self._unsent: list[memoryview] = []

    def fileno(self) -> int:
        """Return the socket's file descriptor, or -1 after the connection was closed."""
        return self._socket.fileno()

    def secure(self, deadline: float) -> None:
        """Do the handshake of TLS.

        Raises:
            TimeoutError: the other side did not answer in time.
            OSError: the handshake failed.
        """

        def shake() -> int:
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket.do_handshake()
            return 1

        self._patient(shake, self._reading, deadline)

    def read(self, into: memoryview, deadline: float, wait: bool = True) -> int:
        """Read the available data, at least one byte.

        Args:
            into: buffer, filled from its beginning.
            deadline: latest time, on the clock ``time.monotonic()``.
            wait: true to wait for data before the first read; false if data have probably arrived.

        Returns:
            number of bytes read.

        Raises:
            TimeoutError: nothing came in time.
            ClosedError: the connection has ended.
        """
        try:
            # With TLS, data may be available that the socket does not show.
            if wait and not self.tls:
                self._await(self._reading, deadline)
            count = self._patient(lambda: self._socket.recv_into(into), self._reading, deadline)
        except TimeoutError:
            raise TimeoutError("nothing was received in time") from None
        except (OSError, ValueError) as error:
            raise ClosedError(f"the connection was lost ({type(error).__name__})") from error
        if not count:
            raise ClosedError("the connection was lost")
        return count

    def write(self, parts: Sequence[Buffer]) -> None:
        """Queue buffers, which :meth:`flush` sends one after the other; they must stay unchanged until then."""
        self._unsent += [memoryview(part) for part in parts if len(part)]

    @property
    def unsent(self) -> bool:
        """True if something remains to be sent."""
        return bool(self._unsent)

    def flush(self, deadline: float) -> None:
        """Send the queued bytes.

        Raises:
            TimeoutError: the other side did not read in time; the next call sends the rest.
            ClosedError: the connection has ended.
        """
        views = self._unsent
        try:
            while views:
                count = self._patient(lambda: self._send(views), self._writing, deadline)
                while views and count >= len(views[0]):
                    count -= len(views.pop(0))
                if count:
                    views[0] = views[0][count:]
        except TimeoutError:
            raise TimeoutError("the other side does not read") from None
        except (OSError, ValueError) as error:
            raise ClosedError(f"the connection was lost ({type(error).__name__})") from error

    def _send(self, views: list[memoryview]) -> int:
        return (
            self._socket.send(views[0]) if self.tls else self._socket.sendmsg(views[:_MOST_VIEWS])
        )

    def _patient(self, call: Callable[[], int], ready: select.poll, deadline: float) -> int:
        """Repeat ``call`` until the socket is ready, and return its result."""
        while (count := self._attempt(call, ready, deadline)) is None:
            pass
        return count

    def _attempt(self, call: Callable[[], int], ready: select.poll, deadline: float) -> int | None:
        """Return the result of ``call``; None if the socket was not ready."""
        try:
            return call()
        except ssl.SSLWantReadError:
            ready = self._reading
        except ssl.SSLWantWriteError:
            ready = self._writing
        except BlockingIOError:
            pass
        self._await(ready, deadline)
        return None

    def _await(self, ready: select.poll, deadline: float) -> None:
        if self.fileno() < 0:
            raise ClosedError("the connection was ended here")
        if not ready.poll(1e3 * max(deadline - time.monotonic(), 0.0)):
            raise TimeoutError

    def end_writing(self) -> None:
        """Signal the other side that no more data follow."""
        shut(self._socket, socket.SHUT_WR)

    def abort(self) -> None:
        """Close the connection at once; may be called from any thread."""
        shut(self._socket)
        self._socket.close()


def shut(sock: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """End a connection, even a TLS connection that another thread is using.

    ``SSLSocket.shutdown`` would remove the encryption, so that the other thread fails or sends plain text.
    """
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, how)


# ---- memory --------------------------------------------------------------------------------------


class Budget:
    """Limit of the bytes that several connections hold together; ``total`` is the number that they hold now.

    Args:
        most: largest number of bytes.
    """

    def __init__(self, most: int) -> None:
        self.most, self.total = most, 0
        self._held: dict[Hashable, int] = {}
        self._lock = threading.Lock()

    def hold(self, owner: Hashable, size: int) -> bool:
        """Set the number of bytes that an owner holds; return false and change nothing if it would exceed the limit."""
        with self._lock:
            more = size - self._held.get(owner, 0)
            if more > 0 and self.total + more > self.most:
                return False
            self._held[owner] = size
            self.total += more
            return True

    def leave(self, owner: Hashable) -> None:
        """Release the bytes of an owner, if it holds any."""
        with self._lock:
            self.total -= self._held.pop(owner, 0)


# ---- admission -----------------------------------------------------------------------------------

T = TypeVar("T")


def same_token(got: object, wanted: str) -> bool:
    """Return true if a token or a proof is correct; the comparison takes the same time wherever they differ."""
    return isinstance(got, str) and hmac.compare_digest(
        got.encode(errors="replace"), wanted.encode()
    )


def proof(token: bytes, role: str, nonce: str) -> str:
    """Return the answer to a nonce, which proves that this side knows the token without sending it."""
    return hmac.new(token, f"{role} {nonce}".encode(), "sha256").hexdigest()


class Lobby(Generic[T]):
    """Connections that have not yet shown that they know the token; safe for several threads.

    Args:
        most: largest number of such connections; beyond it the oldest is ended.
        seconds: time in which a connection must show that it knows the token.

    Attributes:
        most: largest number of such connections.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self.most, self._seconds = most, seconds
        self._ends: dict[T, float] = {}
        self._lock = threading.Lock()

    def enter(self, connection: T) -> list[T]:
        """Add a connection; return the oldest ones, which the caller must end because there are too many."""
        with self._lock:
            self._ends[connection] = time.monotonic() + self._seconds
            return list(self._ends)[: -self.most]

    def leave(self, connection: T) -> None:
        """Remove a connection that has shown its token or has ended; do nothing if it is not included."""
        with self._lock:
            self._ends.pop(connection, None)

    def patience_s(self) -> float | None:
        """Return the seconds until the oldest connection must be ended, or None if no connection waits."""
        with self._lock:
            first = next(iter(self._ends.values()), None)
        return None if first is None else max(0.0, first - time.monotonic())

    def oldest(self) -> list[T]:
        """Return the oldest connection, if there is any."""
        with self._lock:
            return list(self._ends)[:1]
