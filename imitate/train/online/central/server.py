"""Server of a policy worker: receives requests and sends answers in one thread that never waits for a client."""

from __future__ import annotations

import logging
import secrets
import selectors
import socket
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imitate.train.online.central.messages import (
    MAX_MESSAGE,
    Address,
    ChannelError,
    Reader,
    encode,
    is_proof,
    proof,
)

LOG = logging.getLogger(__name__)
_GREETING = 1024
"""Largest size in bytes of a message from a client that has not yet proved that it knows the token."""
MAX_STRANGERS, STRANGER_S = 512, 30.0
"""Largest number of such clients (beyond it the oldest is dropped), and seconds that each of them has."""
MAX_TOGETHER, MAX_REQUESTS = 64, 4096
"""Largest number of requests of one client that are read together, and of those that wait; more stay in connections."""


@dataclass(frozen=True)
class PendingRequest:
    """A request and the client that waits for its answer."""

    content: dict[str, Any]
    client: _Client


class RequestServer:
    """Listens for environment workers.

    All methods but :meth:`wake` must be called from one thread. While that thread computes, requests wait in the
    buffers of their sockets; :meth:`requests` then finds all of them.

    Args:
        host: address on which to listen.
        token: token that clients must know.
    """

    def __init__(self, host: str, token: bytes) -> None:
        self._token, self._waiting = token, deque[PendingRequest]()
        self._strangers: dict[
            _Client, float
        ] = {}  # with the time at which each is dropped, the oldest first
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=1024)
        self._listener.setblocking(False)
        self.address: Address = (host, int(self._listener.getsockname()[1]))
        self._woken, self._wakes = socket.socketpair()
        self._woken.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, self._wake_up)

    def requests(self, most: int) -> list[PendingRequest]:
        """Wait for requests or :meth:`wake`; return the received requests, oldest first, at most ``most``."""
        for key, events in self._selector.select(0.0 if self._waiting else self._patience()):
            if not isinstance(key.data, _Client):
                key.data()
            elif not key.data.closed:
                self._attend(key.data, events)
        while self._strangers and self._patience() == 0.0:
            self._end_oldest("it did not show in time that it knows the token")
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    def answer(self, request: PendingRequest, content: Mapping[str, Any]) -> None:
        """Send an answer; if the client is gone, drop it."""
        client = request.client
        if not client.closed:
            try:
                client.send(content)
            except ChannelError as error:
                self._drop(client, error)
            else:
                self._listen(client)

    def wake(self) -> None:
        """Make :meth:`requests` return; may be called from any thread."""
        self._wakes.send(b"\0")

    def close(self) -> None:
        """End all connections."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Client):
                key.data.sock.close()
        for sock in (self._listener, self._woken, self._wakes):
            sock.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            LOG.warning("a connection was not accepted: %s", error)
            self._end_oldest("there are too many")  # which frees a file descriptor
            return
        client = _Client(sock, self._token)
        self._strangers[client] = time.monotonic() + STRANGER_S
        if len(self._strangers) > MAX_STRANGERS:
            self._end_oldest("there are too many")
        self._selector.register(sock, selectors.EVENT_READ, client)
        try:
            client.greet()
        except ChannelError as error:  # the client has already disconnected
            self._drop(client, error)
        else:
            self._listen(client)

    def _patience(self) -> float | None:
        """Return the seconds until the oldest unproved client is dropped."""
        first = next(iter(self._strangers.values()), None)
        return None if first is None else max(0.0, first - time.monotonic())

    def _end_oldest(self, reason: str) -> None:
        for oldest in list(self._strangers)[:1]:
            self._drop(oldest, ChannelError(reason))

    def _wake_up(self) -> None:
        self._woken.recv(4096)

    def _attend(self, client: _Client, events: int) -> None:
        """Send the rest of answers, and read complete messages."""
        try:
            if events & selectors.EVENT_WRITE:
                client.flush()
            if events & selectors.EVENT_READ and len(self._waiting) < MAX_REQUESTS:
                self._waiting += [PendingRequest(content, client) for content in client.received()]
                if client.is_admitted:
                    self._strangers.pop(client, None)
        except ChannelError as error:
            self._drop(client, error)
        else:
            self._listen(client)

    def _listen(self, client: _Client) -> None:
        """Watch for writability only if something remains to be sent."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.unsent else 0)
        self._selector.modify(client.sock, events, client)

    def _drop(self, client: _Client, error: ChannelError) -> None:
        LOG.info("an environment worker is gone: %s", error)
        self._strangers.pop(client, None)
        self._selector.unregister(client.sock)
        client.sock.close()
        client.closed = True


class _Client:
    """Connection to an environment worker."""

    def __init__(self, sock: socket.socket, token: bytes) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock, self._token, self.closed = sock, token, False
        self.unsent: list[memoryview] = []
        self._reader = Reader(sock, limit=_GREETING)
        self._nonce: str | None = secrets.token_hex(16)

    @property
    def is_admitted(self) -> bool:
        """Return true if it has proved that it knows the token."""
        return self._nonce is None

    def greet(self) -> None:
        """Ask for the proof that it knows the token."""
        self.send({"nonce": self._nonce})

    def send(self, content: Mapping[str, Any]) -> None:
        self.unsent += [memoryview(part) for part in encode(content) if len(part)]
        self.flush()

    def flush(self) -> None:
        """Send as much as the socket accepts."""
        while self.unsent:
            try:
                count = self.sock.sendmsg(self.unsent)
            except BlockingIOError:
                return
            except OSError as error:
                raise ChannelError(f"the connection was lost ({type(error).__name__})") from error
            while self.unsent and count >= len(self.unsent[0]):
                count -= len(self.unsent.pop(0))
            if count:
                self.unsent[0] = self.unsent[0][count:]

    def received(self) -> list[dict[str, Any]]:
        """Return the completely received requests, at most so many: more wait in the connection, and its sender too."""
        found: list[dict[str, Any]] = []
        try:
            while len(found) < MAX_TOGETHER:
                message = self._reader.read()
                if self._nonce is None:
                    found.append(message)
                else:
                    self._admit(message, self._nonce)
        except BlockingIOError:
            pass
        return found

    def _admit(self, message: Mapping[str, Any], nonce: str) -> None:
        if not is_proof(message.get("proof"), proof(self._token, "worker", nonce)):
            raise ChannelError("it does not know the token")
        self._nonce, self._reader.limit = None, MAX_MESSAGE
        self.send({"proof": proof(self._token, "policy", str(message.get("nonce")))})
