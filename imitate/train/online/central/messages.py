"""Messages between environment workers and policy workers: JSON, followed by the bytes of arrays.

A message is a tree of dicts with numbers, strings, None and numpy arrays. Nothing in it can run code: an array is
described by dtype and shape, which must agree with the received bytes.

The module also has the connection of an environment worker to a policy worker.
"""

from __future__ import annotations

import hmac
import json
import math
import re
import secrets
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from imitate.errors import UserError

MAX_MESSAGE = 256 * 2**20
"""Size in bytes of the largest message that is read."""
_HEAD = struct.Struct("!II")  # size of the JSON, size of the arrays (both in bytes)
_DTYPE = re.compile(r"[<>|][biuf][0-9]{1,2}")
"""Allowed dtype names of arrays in a message; numpy would accept many more."""


class ChannelError(UserError):
    """The other side of a connection is gone, does not answer, or sends something that is not a message."""


def encode(message: Mapping[str, Any]) -> list[bytes | memoryview]:
    """Return a message as buffers to send one after the other.

    Raises:
        ChannelError: it is larger than a reader accepts.
    """
    arrays: list[bytes | memoryview] = []

    def described(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: described(part) for key, part in value.items()}
        if isinstance(value, np.ndarray):
            whole = np.ascontiguousarray(value)
            arrays.append(whole.reshape(-1).view(np.uint8).data if whole.size else b"")
            return [value.dtype.str, list(value.shape)]
        return value

    text = json.dumps(described(message)).encode()
    size = sum(map(len, arrays))
    if len(text) + size > MAX_MESSAGE:
        raise ChannelError(
            f"a message has {len(text) + size} bytes, but at most {MAX_MESSAGE} are allowed: "
            "divide the environments among more workers or a longer ring"
        )
    return [_HEAD.pack(len(text), size) + text, *arrays]


def decode(text: memoryview, data: memoryview) -> dict[str, Any]:
    """Return the message; its arrays share the memory of ``data``.

    Raises:
        ChannelError: it is malformed.
    """
    at = 0

    def built(value: Any) -> Any:
        nonlocal at
        if isinstance(value, dict):
            return {key: built(part) for key, part in value.items()}
        if not isinstance(value, list):
            return value
        name, shape = value[0], tuple(value[1])
        if not _DTYPE.fullmatch(name) or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError
        dtype = np.dtype(name)
        size = math.prod(shape) * dtype.itemsize
        array = np.frombuffer(data[at : at + size], dtype=dtype).reshape(shape)
        at += size
        return array

    try:
        message = built(json.loads(bytes(text)))
    except (ValueError, TypeError, IndexError, RecursionError) as error:
        raise ChannelError("a message is malformed") from error
    if not isinstance(message, dict) or at != len(data):
        raise ChannelError("a message is malformed")
    return message


class Reader:
    """Messages from a socket, which may block, have a timeout, or not wait at all.

    Args:
        sock: connected socket.

    Attributes:
        limit: bytes of the largest message that is read.
    """

    def __init__(self, sock: socket.socket, limit: int = MAX_MESSAGE) -> None:
        self._sock, self.limit = sock, limit
        self._text = 0
        self._expect(_HEAD.size, is_head=True)

    def read(self) -> dict[str, Any]:
        """Return the next message.

        Raises:
            BlockingIOError, TimeoutError: it has not arrived completely; the next call
                reads the rest.
            ChannelError: the connection has ended, or the received bytes are not a message.
        """
        while True:
            while self._count < len(self._view):
                self._count += self._received()
            if not self._is_head:
                break
            text, size = _HEAD.unpack(self._view)
            if text + size > self.limit or not text:
                raise ChannelError(f"a message claims to have {text + size} bytes")
            self._text = text
            self._expect(text + size, is_head=False)
        view, text = self._view, self._text
        self._expect(_HEAD.size, is_head=True)
        return decode(view[:text], view[text:])

    def _expect(self, size: int, *, is_head: bool) -> None:
        # Use separate memory, which the arrays of the message then share.
        self._view, self._count, self._is_head = memoryview(bytearray(size)), 0, is_head

    def _received(self) -> int:
        try:
            count = self._sock.recv_into(self._view[self._count :])
        except (BlockingIOError, TimeoutError):
            raise
        except OSError as error:
            raise ChannelError(f"the connection was lost ({type(error).__name__})") from error
        if not count:
            raise ChannelError("the other side closed the connection")
        return count


BEAT_S = 0.5
"""Seconds between two signs of life of a waiting worker."""
Address = tuple[str, int]
T = TypeVar("T")


class PolicyChannel:
    """Requests to a policy worker, and its answers in the order of the requests.

    Both sides prove that they know the token, which is never sent itself.

    Args:
        address: host and port.
        token: token of the training.
        beat: called at least every :data:`BEAT_S` while this side waits.
        timeout_s: longest time for connecting and for each answer.

    Raises:
        ChannelError: nobody answers, or the other side does not know the token.
    """

    def __init__(
        self, address: Address, token: bytes, beat: Callable[[], None], timeout_s: float
    ) -> None:
        self.address, self._beat, self._timeout_s = address, beat, timeout_s
        try:
            self._sock = socket.create_connection(address, timeout=timeout_s)
        except OSError as error:
            raise ChannelError(f"cannot connect to {address[0]}:{address[1]}: {error}") from error
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.settimeout(BEAT_S)
        self._reader = Reader(self._sock)
        try:
            self._greet(token)
        except ChannelError:
            self.close()
            raise

    def ask(self, request: Mapping[str, Any]) -> None:
        """Send a request.

        Raises:
            ChannelError: the connection is lost, or the other side does not read in time.
        """
        parts = [memoryview(part) for part in encode(request) if len(part)]
        deadline = time.monotonic() + self._timeout_s
        while parts:
            count = self._patient(lambda: self._sock.sendmsg(parts), deadline)
            while parts and count >= len(parts[0]):
                count -= len(parts.pop(0))
            if count:
                parts[0] = parts[0][count:]

    def answer(self) -> dict[str, Any]:
        """Return the answer to the oldest request.

        Raises:
            ChannelError: the connection is lost, or no answer came in time.
        """
        return self._patient(self._reader.read, time.monotonic() + self._timeout_s)

    def close(self) -> None:
        """End the connection."""
        self._sock.close()

    def _patient(self, call: Callable[[], T], deadline: float) -> T:
        """Repeat a call until the socket is ready; return its result."""
        while (result := self._attempt(call)) is None:
            self._beat()
            if time.monotonic() > deadline:
                raise ChannelError(f"the policy worker did not answer within {self._timeout_s:g} s")
        return result

    def _attempt(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except TimeoutError:
            return None
        except OSError as error:
            raise ChannelError(f"the connection was lost ({type(error).__name__})") from error

    def _greet(self, token: bytes) -> None:
        theirs, ours = str(self.answer().get("nonce")), secrets.token_hex(16)
        self.ask({"nonce": ours, "proof": proof(token, "worker", theirs)})
        if not is_proof(self.answer().get("proof"), proof(token, "policy", ours)):
            raise ChannelError(f"{self.address[0]}:{self.address[1]} does not know the token")


def proof(token: bytes, role: str, nonce: str) -> str:
    """Return the answer to a nonce that proves that this side knows the token."""
    return hmac.new(token, f"{role} {nonce}".encode(), "sha256").hexdigest()


def is_proof(got: Any, wanted: str) -> bool:
    """Return true if a proof is correct."""
    return isinstance(got, str) and got.isascii() and hmac.compare_digest(got, wanted)
