"""Connection of an environment worker to a policy worker."""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from imitate.online.central.messages import ChannelError, Reader, encode

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
