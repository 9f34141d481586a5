"""Sockets whose every call has a deadline, the admission of connections by tokens, and their common memory."""

from __future__ import annotations

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
    """A connected socket whose every call has a deadline.

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
        """Return the socket's descriptor, or -1 after its end."""
        return self._socket.fileno()

    def secure(self, deadline: float) -> None:
        """Do the handshake of TLS.

        Raises:
            TimeoutError: the other side did not do its part in time.
            OSError: it failed.
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
            deadline: time of ``time.monotonic()``.
            wait: false if data have probably arrived already.

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
        """Take buffers, which :meth:`flush` sends one after the other; they must stay unchanged until then."""
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
        """Tell the other side that no more data follow."""
        shut(self._socket, socket.SHUT_WR)

    def abort(self) -> None:
        """Close the connection at once; may be called from any thread."""
        shut(self._socket)
        self._socket.close()


def shut(sock: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """End a connection, also of TLS while another thread uses it.

    ``SSLSocket.shutdown`` would take the encryption from the other thread, which then fails or sends plain text.
    """
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, how)


# ---- memory --------------------------------------------------------------------------------------


class Budget:
    """Bytes that several connections may hold together; attribute ``total`` is what they hold now.

    Args:
        most: largest number of bytes.
    """

    def __init__(self, most: int) -> None:
        self.most, self.total = most, 0
        self._held: dict[Hashable, int] = {}
        self._lock = threading.Lock()

    def hold(self, owner: Hashable, size: int) -> bool:
        """Set the bytes of one owner; return false, and change nothing, if they are more and the sum is too large."""
        with self._lock:
            more = size - self._held.get(owner, 0)
            if more > 0 and self.total + more > self.most:
                return False
            self._held[owner] = size
            self.total += more
            return True

    def leave(self, owner: Hashable) -> None:
        """Forget an owner, which may be unknown."""
        with self._lock:
            self.total -= self._held.pop(owner, 0)


# ---- admission -----------------------------------------------------------------------------------

T = TypeVar("T")


def same_token(got: object, wanted: str) -> bool:
    """Return true if a token or a proof is correct; the duration does not depend on where they differ."""
    return isinstance(got, str) and hmac.compare_digest(
        got.encode(errors="replace"), wanted.encode()
    )


def proof(token: bytes, role: str, nonce: str) -> str:
    """Return the answer to a nonce that proves that this side knows the token, which is not sent itself."""
    return hmac.new(token, f"{role} {nonce}".encode(), "sha256").hexdigest()


class Lobby(Generic[T]):
    """Connections that have not shown that they know the token. Several threads may use it.

    Args:
        most: largest number of them; one more ends the oldest.
        seconds: longest time of each.

    Attributes:
        most: the same.
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
        """Remove a connection, if it is there, after it has shown its token or has ended."""
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
