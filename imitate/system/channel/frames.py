"""Messages as WebSocket frames, with a deadline for every call and without threads of its own.

A message is read and answered in the calling thread, so no other thread must be woken. Data are copied once in each
direction: sent data go directly to the socket, received data go into a reused buffer. The frames are those of RFC 6455,
section 5.2, without extensions. A policy server and its clients begin with the handshake of the RFC
(:mod:`imitate.deploy.server.handshake`), processes of one training with frames at once.
"""

import contextlib
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from imitate.errors import ClosedError, WireError
from imitate.system.channel.messages import LARGE
from imitate.system.channel.stream import Budget, Buffer, Stream

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
LONGEST_HEADER = 14
_OPCODES = frozenset({CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG})
_LONGEST_CONTROL = 125
NO_MASK = bytes(4)
"""Masking key of zeros, which leaves the data unchanged."""


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
        WireError: reserved bits, an unknown opcode, or a control frame that is too long or fragmented.
    """
    if len(data) < 2:
        return None
    first, second = data[0], data[1]
    opcode, final, length = first & 0x0F, bool(first & 0x80), second & 0x7F
    if first & 0x70 or opcode not in _OPCODES:
        raise WireError("a frame has reserved bits or an unknown opcode")
    if opcode >= CLOSE and (not final or length > _LONGEST_CONTROL):
        raise WireError("a control frame is too long or fragmented")
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


def no_mask() -> bytes:
    """Return the masking key of a client without proxies: zeros, so that sent data need not be copied."""
    return NO_MASK


def masked(data: Buffer, mask: bytes) -> memoryview:
    """Return a copy of ``data`` masked with the key; masking the copy again restores the data."""
    length = len(data)
    words: NDArray[np.uint32] = np.zeros((length + 3) // 4, dtype=np.uint32)
    octets = words.view(np.uint8)[:length]
    octets[:] = np.frombuffer(data, dtype=np.uint8)
    words ^= np.frombuffer(mask, dtype=np.uint32)
    return octets.data


_SMALL_BUFFER = 2**16
_FIRST_GROWTH = 2**20
FULL = "the messages of all connections take too much memory together; try again later"
_MOST_PARTS = 1024
"""Largest number of frames of a message; needed because the size limit does not bound the number of empty frames."""


class Channel:
    """One connection. Each method except :meth:`abort` must be called by one thread at a time.

    Args:
        stream: connected stream; a handshake, if any, must be finished.
        max_bytes: size limit of a received message.
        new_mask: for a client, a function that returns the masking key of each frame; None for a server, whose frames
            are not masked.
        data: bytes already received after the handshake.
        linger_s: longest time in seconds for answering control frames and closing; 0 for a thread that must not wait.
        budget: limit of the bytes that this and other connections together hold for unfinished messages; None for no
            common limit.

    Attributes:
        max_bytes: size limit of the next received message.
    """

    def __init__(
        self,
        stream: Stream,
        max_bytes: int,
        new_mask: Callable[[], bytes] | None = None,
        data: bytes = b"",
        linger_s: float = 0.5,
        budget: Budget | None = None,
    ) -> None:
        self.max_bytes, self._linger_s, self._budget = max_bytes, linger_s, budget
        self._stream, self._new_mask = stream, new_mask
        self._buffer = bytearray(data)
        self._start, self._end = 0, len(data)
        self._parts: list[bytes] = []
        self._kind, self._usual = BINARY, _SMALL_BUFFER
        self._emptied = False
        self._ended: str | None = None

    # ---- messages --------------------------------------------------------------------------------

    def send(self, data: Buffer | str | Sequence[Buffer], timeout_s: float) -> None:
        """Send one message, in one or several parts.

        Raises:
            TimeoutError: the other side did not read it in time; the connection is then unusable.
            ClosedError: the connection has ended.
        """
        self._refuse_if_ended()
        if isinstance(data, str):
            self._write(TEXT, [data.encode()], timeout_s)
        else:
            self._write(BINARY, [data] if isinstance(data, Buffer) else data, timeout_s)

    def post(self, parts: Sequence[Buffer]) -> None:
        """Queue one message, which :meth:`flush` sends; its parts must stay unchanged until then.

        Raises:
            ClosedError: the connection has ended.
        """
        self._refuse_if_ended()
        self._queue(BINARY, parts)

    def flush(self, timeout_s: float) -> None:
        """Send the queued messages.

        Raises:
            TimeoutError: the other side did not read them in time; the next call sends the rest.
            ClosedError: the connection has ended.
        """
        try:
            self._stream.flush(time.monotonic() + timeout_s)
        except ClosedError as error:
            self._ended = str(error)
            raise

    @property
    def unsent(self) -> bool:
        """True if :meth:`flush` has something to send."""
        return self._stream.unsent

    def fileno(self) -> int:
        """Return the socket's file descriptor, for selectors; -1 after the connection was closed."""
        return self._stream.fileno()

    def recv(self, timeout_s: float) -> memoryview | str:
        """Receive the next message; the bytes of a small message are valid only until the next call.

        Raises:
            TimeoutError: no message came in time.
            ClosedError: the connection has ended, or the message is larger than allowed.
        """
        self._refuse_if_ended()
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                header, data = self._frame(deadline)
                message = self._message(header, data)
            except ClosedError:
                raise
            except WireError as error:
                self.close(1002, str(error))
                raise ClosedError(str(error)) from error
            if message is not None:
                return message
            if time.monotonic() > deadline:  # the other side may send pings endlessly
                raise TimeoutError("nothing but pings was received in time")

    @property
    def emptied(self) -> bool:
        """True if no more data had been received when the last message was read."""
        return self._emptied and self._start == self._end

    def ping(self, timeout_s: float) -> None:
        """Send a ping; :meth:`recv` reads the other side's answer."""
        self._write(PING, [], timeout_s)

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection, with a close frame if the other side still reads."""
        if self._ended is None:
            with contextlib.suppress(OSError):
                self._write(CLOSE, [struct.pack("!H", code), reason.encode()[:120]], self._linger_s)
                self._ended = f"the connection was ended: {reason or code}"
                self._stream.end_writing()
                # Read the other side's remaining data; otherwise that side would get a connection reset instead of the
                # reason.
                deadline = time.monotonic() + self._linger_s
                into = memoryview(bytearray(_SMALL_BUFFER))
                while time.monotonic() < deadline:
                    self._stream.read(into, deadline)
        self.abort()

    def abort(self) -> None:
        """Close the connection at once; may be called from any thread."""
        self._ended = self._ended or "the connection was ended here"
        self._stream.abort()

    # ---- frames ----------------------------------------------------------------------------------

    def _refuse_if_ended(self) -> None:
        if self._ended is not None:
            raise ClosedError(self._ended)

    def _write(self, opcode: int, parts: Sequence[Buffer], timeout_s: float) -> None:
        self._queue(opcode, parts)
        try:
            self.flush(timeout_s)
        except TimeoutError as error:  # after an incomplete message nothing can be sent
            self._ended = str(error)
            raise

    def _queue(self, opcode: int, parts: Sequence[Buffer]) -> None:
        mask = None if self._new_mask is None else self._new_mask()
        if mask is not None and mask != NO_MASK:
            parts = [masked(b"".join(parts), mask)]
        self._stream.write([header_of(opcode, sum(map(len, parts)), mask), *parts])

    def _frame(self, deadline: float) -> tuple[FrameHeader, memoryview]:
        """Read the next frame."""
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
        if len(data) >= LARGE:  # keep the message valid after the next read
            self._usual = max(self._usual, len(data) + 2 * LONGEST_HEADER)
            if 2 * len(data) < len(self._buffer):
                data = memoryview(bytes(data))
            else:
                self._renew_buffer(0)
        if header.mask is not None and header.mask != NO_MASK:
            data = masked(data, header.mask)
        return header, data

    def _check(self, header: FrameHeader) -> None:
        """Raise an error for a frame that is not allowed, before its data are read."""
        if (header.mask is None) is (self._new_mask is None):
            raise WireError("a frame of a client has no mask, or one of a server has a mask")
        if len(self._parts) >= _MOST_PARTS:
            raise WireError(f"a message has more than {_MOST_PARTS} frames")
        if header.length + sum(map(len, self._parts)) > self.max_bytes:
            self.close(1009, "the message is too large")
            raise ClosedError(f"a message is larger than {self.max_bytes} bytes")

    def _make_room(self, size: int) -> None:
        """Make room in the buffer for ``size`` bytes from the beginning of the frame."""
        if self._start == self._end:
            self._start = self._end = 0
        if self._start + size <= len(self._buffer):
            return
        # The buffer grows with the received bytes, not to the size that a header announces.
        came = self._end - self._start
        self._renew_buffer(min(size + LONGEST_HEADER, max(2 * came, _FIRST_GROWTH)))

    def _renew_buffer(self, size: int) -> None:
        """Continue in another buffer, because messages that were returned still use the former one."""
        unread = memoryview(self._buffer)[self._start : self._end]
        usual = min(self._usual, self.max_bytes + LONGEST_HEADER)
        size = max(size, usual, len(unread))
        self._claim(size)
        self._buffer = bytearray(size)
        self._buffer[: len(unread)] = unread
        self._start, self._end = 0, len(unread)

    def _claim(self, size: int) -> None:
        """Take a buffer of this size from the budget; close the connection if too little is left."""
        held = size + sum(map(len, self._parts))
        if self._budget is not None and not self._budget.hold(self, held):
            self._buffer, self._parts, self._start, self._end = bytearray(), [], 0, 0
            self.close(1013, FULL)
            raise ClosedError(FULL)

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
            self._write(PONG, [bytes(data)], self._linger_s)
        if header.opcode > BINARY:
            return None
        if (header.opcode == CONTINUATION) is not bool(self._parts):
            raise WireError(
                "a continuation frame follows no message, or a message begins within another"
            )
        if header.opcode != CONTINUATION:
            self._kind = header.opcode
        if self._parts or not header.final:
            self._parts.append(bytes(data))
            self._claim(len(self._buffer))
            if not header.final:
                return None
            data, self._parts = memoryview(b"".join(self._parts)), []
        return str(data, "utf-8", "replace") if self._kind == TEXT else data

    def _answer_close(self, data: memoryview) -> None:
        """Answer the other side's close frame."""
        code = struct.unpack_from("!H", data)[0] if len(data) >= 2 else 1005
        reason = str(data[2:], "utf-8", "replace")
        with contextlib.suppress(OSError):
            self._write(CLOSE, [bytes(data[:2])], self._linger_s)
        self._ended = f"the connection was ended: {reason or code}"
        raise ClosedError(self._ended)
