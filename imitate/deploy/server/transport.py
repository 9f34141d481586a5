"""Blocking WebSocket connections, with a deadline for every call and without own threads.

A message is read and answered in the calling thread, so no other thread must be woken. Data are copied once in each
direction: sent data go directly to the socket, received data go into a reused buffer. Connections are made in
:mod:`imitate.deploy.server.handshake`.

The frames are those of RFC 6455, section 5.2, without extensions.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
LONGEST_HEADER = 14
_OPCODES = frozenset({CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG})
_LONGEST_CONTROL = 125
NO_MASK = bytes(4)
"""Masking key that leaves the data unchanged."""

Buffer = bytes | bytearray | memoryview


class FrameError(ValueError):
    """The protocol forbids a frame; the connection must be closed."""


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The beginning of a frame.

    Attributes:
        opcode: one of the module's constants.
        final: true if the frame ends its message.
        mask: the masking key, or None if the data are not masked.
        size: size of the header itself in bytes.
        length: size of the following data in bytes.
    """

    opcode: int
    final: bool
    mask: bytes | None
    size: int
    length: int


def header_of(opcode: int, length: int, mask: bytes | None) -> bytes:
    """Return the header of a frame that contains a whole message."""
    masked = 0 if mask is None else 0x80
    if length < 126:
        head = struct.pack("!BB", 0x80 | opcode, masked | length)
    elif length < 2**16:
        head = struct.pack("!BBH", 0x80 | opcode, masked | 126, length)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, masked | 127, length)
    return head if mask is None else head + mask


def read_header(data: Buffer) -> FrameHeader | None:
    """Read the header at the beginning of ``data``; return None if more bytes are needed.

    Raises:
        FrameError: reserved bits, an unknown opcode, or a control frame that is too long or fragmented.
    """
    if len(data) < 2:
        return None
    first, second = data[0], data[1]
    opcode, final, length = first & 0x0F, bool(first & 0x80), second & 0x7F
    if first & 0x70 or opcode not in _OPCODES:
        raise FrameError("a frame of an unknown kind")
    if opcode >= CLOSE and (not final or length > _LONGEST_CONTROL):
        raise FrameError("a control frame that is too long or fragmented")
    size = 2
    if length >= 126:
        size, code = (4, "!H") if length == 126 else (10, "!Q")
        if len(data) < size:
            return None
        (length,) = struct.unpack_from(code, data, 2)
    mask = None
    if second & 0x80:
        if len(data) < size + 4:
            return None
        mask = bytes(data[size : size + 4])
        size += 4
    return FrameHeader(opcode, final, mask, size, length)


def masked(data: Buffer, mask: bytes) -> memoryview:
    """Return a copy of ``data`` with the key applied; applying it twice restores the data."""
    length = len(data)
    words: NDArray[np.uint32] = np.zeros((length + 3) // 4, dtype=np.uint32)
    octets = words.view(np.uint8)[:length]
    octets[:] = np.frombuffer(data, dtype=np.uint8)
    words ^= np.frombuffer(mask, dtype=np.uint32)
    return octets.data


_BUFFER = 2**21
_FIRST_BUFFER = 2**16
_FIRST_GROWTH = 2**20
_CLOSE_S = 0.5
_MOST_PARTS = 1024
"""Largest number of frames of a message: the size limit does not bound empty frames."""


class ClosedError(ConnectionError):
    """The connection has ended; the message contains the reason."""


class Stream:
    """A connected socket whose every call has a deadline.

    Args:
        sock: connected socket after the TLS handshake.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, buffer, _BUFFER)
        sock.settimeout(0.0)
        self._socket, self.tls = sock, isinstance(sock, ssl.SSLSocket)
        self._reading, self._writing = select.poll(), select.poll()
        self._reading.register(sock, select.POLLIN)
        self._writing.register(sock, select.POLLOUT)

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
            if (
                wait and not self.tls
            ):  # with TLS, data may be available that the socket does not show
                self._await(self._reading, deadline)
            count = self._patient(lambda: self._socket.recv_into(into), self._reading, deadline)
        except TimeoutError:
            raise TimeoutError("nothing was received in time") from None
        except (OSError, ValueError) as error:
            raise ClosedError(f"the connection was lost ({type(error).__name__})") from error
        if not count:
            raise ClosedError("the connection was lost")
        return count

    def write(self, parts: list[Buffer], deadline: float) -> None:
        """Send buffers one after the other.

        Raises:
            TimeoutError: the other side did not read in time; part of the data may have been sent.
            ClosedError: the connection has ended.
        """
        views = [memoryview(part) for part in parts if len(part)]
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
        return self._socket.send(views[0]) if self.tls else self._socket.sendmsg(views)

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
        if self._socket.fileno() < 0:
            raise ClosedError("the connection was ended here")
        if not ready.poll(1e3 * max(deadline - time.monotonic(), 0.0)):
            raise TimeoutError

    def end_writing(self) -> None:
        """Tell the other side that no more data follow."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def abort(self) -> None:
        """Close the connection at once; may be called from any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Channel:
    """One WebSocket connection. Each method except :meth:`abort` must be called by one thread at a time.

    Args:
        stream: connected stream after the handshake.
        max_bytes: size limit of a received message.
        new_mask: returns the masking key of each frame that a client sends; None for a server, whose frames are not
            masked.
        data: bytes received after the handshake.
    """

    def __init__(
        self,
        stream: Stream,
        max_bytes: int,
        new_mask: Callable[[], bytes] | None = None,
        data: bytes = b"",
    ) -> None:
        self._stream, self._max_bytes, self._new_mask = stream, max_bytes, new_mask
        self._buffer = bytearray(max(_FIRST_BUFFER, len(data)))
        self._buffer[: len(data)] = data
        self._start, self._end = 0, len(data)
        self._parts: list[bytes] = []
        self._kind = BINARY
        self._emptied = False
        self._ended: str | None = None

    # ---- messages --------------------------------------------------------------------------------

    def send(self, data: Buffer | str, timeout_s: float) -> None:
        """Send one message.

        Raises:
            TimeoutError: the other side did not read it in time; the connection is then unusable.
            ClosedError: the connection has ended.
        """
        if self._ended is not None:
            raise ClosedError(self._ended)
        text = isinstance(data, str)
        body: Buffer = data.encode() if isinstance(data, str) else data
        self._write(TEXT if text else BINARY, body, timeout_s)

    def recv(self, timeout_s: float) -> memoryview | str:
        """Receive the next message; its bytes are valid until the next call.

        Raises:
            TimeoutError: none came in time.
            ClosedError: the connection has ended, or the message is larger than allowed.
        """
        if self._ended is not None:
            raise ClosedError(self._ended)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                header, data = self._frame(deadline)
                message = self._message(header, data)
            except FrameError as error:
                self.close(1002, str(error))
                raise ClosedError(str(error)) from error
            if message is not None:
                return message
            if time.monotonic() > deadline:  # from a side that sends pings endlessly
                raise TimeoutError("nothing but pings was received in time")

    @property
    def emptied(self) -> bool:
        """True if no more data had been received when the last message was read."""
        return self._emptied and self._start == self._end

    def ping(self, timeout_s: float) -> None:
        """Request a sign of life, which :meth:`recv` reads."""
        self._write(PING, b"", timeout_s)

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection, with a close frame if the other side still reads."""
        if self._ended is None:
            with contextlib.suppress(OSError):
                self._write(CLOSE, struct.pack("!H", code) + reason.encode()[:120], _CLOSE_S)
                self._ended = f"the connection was ended: {reason or code}"
                self._stream.end_writing()
                # Read the other side's data to the end; otherwise it would see a reset instead of the reason.
                deadline, into = time.monotonic() + _CLOSE_S, memoryview(bytearray(_FIRST_BUFFER))
                while time.monotonic() < deadline:
                    self._stream.read(into, deadline)
        self.abort()

    def abort(self) -> None:
        """Close the connection at once; may be called from any thread."""
        self._ended = self._ended or "the connection was ended here"
        self._stream.abort()

    # ---- frames ----------------------------------------------------------------------------------

    def _write(self, opcode: int, body: Buffer, timeout_s: float) -> None:
        mask = None if self._new_mask is None else self._new_mask()
        if mask is not None and mask != NO_MASK:
            body = masked(body, mask)
        head = header_of(opcode, len(body), mask)
        try:
            self._stream.write([head, body], time.monotonic() + timeout_s)
        except OSError as error:
            self._ended = str(error)
            raise

    def _frame(self, deadline: float) -> tuple[FrameHeader, memoryview]:
        """Read the next frame; its data are valid until the next call."""
        while True:
            header = read_header(memoryview(self._buffer)[self._start : self._end])
            if header is not None:
                self._check(header)
                stop = self._start + header.size + header.length
                if self._end >= stop:
                    break
                self._make_room(header.size + header.length)
            else:
                self._make_room(LONGEST_HEADER)
            self._fill(deadline)
        data = memoryview(self._buffer)[self._start + header.size : stop]
        self._start = stop
        if header.mask is not None and header.mask != NO_MASK:
            data = masked(data, header.mask)
        return header, data

    def _check(self, header: FrameHeader) -> None:
        """Refuse a frame before its data are read."""
        if (header.mask is None) is (self._new_mask is None):
            raise FrameError("a frame of a client without a mask, or of a server with one")
        if len(self._parts) >= _MOST_PARTS:
            raise FrameError(f"a message of more than {_MOST_PARTS} frames")
        if header.length + sum(map(len, self._parts)) > self._max_bytes:
            self.close(1009, "the message is too large")
            raise ClosedError(f"a message is larger than {self._max_bytes} bytes")

    def _make_room(self, size: int) -> None:
        """Make room in the buffer for ``size`` bytes from the beginning of the frame."""
        if self._start == self._end:
            self._start = self._end = 0
        if self._start + size <= len(self._buffer):
            return
        # Data that were given away stay in the former buffer. It grows with what came, not with what is announced.
        kept = self._buffer[self._start : self._end]
        size = min(size, max(2 * len(kept), _FIRST_GROWTH))
        self._buffer = bytearray(max(size, len(self._buffer)))
        self._buffer[: len(kept)] = kept
        self._start, self._end = 0, len(kept)

    def _fill(self, deadline: float) -> None:
        """Read more of the frame."""
        room = memoryview(self._buffer)[self._end :]
        try:
            count = self._stream.read(room, deadline, wait=self._start == self._end)
        except ClosedError as error:
            self._ended = str(error)
            raise
        self._end += count
        # With TLS, a read returns one record, and more may be available.
        self._emptied = not self._stream.tls and count < len(room)

    def _message(self, header: FrameHeader, data: memoryview) -> memoryview | str | None:
        """Return the message that a frame completes, or None."""
        if header.opcode == CLOSE:
            self._answer_close(data)
        if header.opcode == PING:
            self._write(PONG, bytes(data), _CLOSE_S)
        if header.opcode > BINARY:
            return None
        if (header.opcode == CONTINUATION) is not bool(self._parts):
            raise FrameError("a continuation frame without a message, or a message within another")
        if header.opcode != CONTINUATION:
            self._kind = header.opcode
        if self._parts or not header.final:
            self._parts.append(bytes(data))
            if not header.final:
                return None
            data, self._parts = memoryview(b"".join(self._parts)), []
        return str(data, "utf-8", "replace") if self._kind == TEXT else data

    def _answer_close(self, data: memoryview) -> None:
        """Answer the other side's close frame."""
        code = struct.unpack_from("!H", data)[0] if len(data) >= 2 else 1005
        reason = str(data[2:], "utf-8", "replace")
        with contextlib.suppress(OSError):
            self._write(CLOSE, bytes(data[:2]), _CLOSE_S)
        self._ended = f"the connection was ended: {reason or code}"
        raise ClosedError(self._ended)
