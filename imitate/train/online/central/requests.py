"""Requests of environment workers to a policy worker: both ends of their connections.

A connection begins with the policy worker's nonce. The environment worker answers with a proof that it knows the
training's token and with its own nonce; then the policy worker proves the same. The token is never sent itself.
"""

import logging
import secrets
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from imitate.errors import WireError
from imitate.system.channel.frames import Channel, no_mask
from imitate.system.channel.messages import MAX_MESSAGE, decode_map, encode_parts
from imitate.system.channel.stream import Lobby, Stream, proof, same_token

LOG = logging.getLogger(__name__)
BEAT_S = 0.5
"""Seconds between two signs of life of a waiting worker."""
GREETING_BYTES = 1024
"""Largest size of a message from a side that has not yet proved that it knows the token."""
MAX_STRANGERS = 512
"""Largest number of clients that have not yet proved that they know the token; if more come, the oldest is dropped."""
STRANGER_S = 30.0
"""Seconds in which a client must prove that it knows the token."""
MAX_TOGETHER = 64
"""Largest number of requests of one client that are read together."""
MAX_REQUESTS = 4096
"""Largest number of requests that wait; more stay in their connections."""
Address = tuple[str, int]
T = TypeVar("T")


class PolicyChannel:
    """Requests to a policy worker, and its answers in the order of the requests.

    Args:
        address: host and port.
        token: token of the training.
        beat: called at least every :data:`BEAT_S` while this side waits.
        timeout_s: longest time for connecting and for each answer.

    Raises:
        WireError: nobody answers, or the other side does not know the token.
    """

    def __init__(
        self, address: Address, token: bytes, beat: Callable[[], None], timeout_s: float
    ) -> None:
        self.address, self._beat, self._timeout_s = address, beat, timeout_s
        try:
            sock = socket.create_connection(address, timeout=timeout_s)
        except OSError as error:
            raise WireError(f"cannot connect to {address[0]}:{address[1]}: {error}") from error
        self._channel = Channel(Stream(sock), GREETING_BYTES, no_mask)
        try:
            self._greet(token)
        except WireError:
            self.close()
            raise

    def ask(self, request: Mapping[str, Any]) -> None:
        """Send a request.

        Raises:
            WireError: the message is too large, the connection is lost, or the other side does not read in time.
        """
        parts = encode_parts(request)
        if (size := sum(map(len, parts))) > MAX_MESSAGE:
            raise WireError(
                f"a message has {size} bytes, but at most {MAX_MESSAGE} are allowed: "
                "divide the environments among more workers or a longer ring"
            )
        self._channel.post(parts)
        self._patient(self._channel.flush)

    def answer(self) -> dict[str, Any]:
        """Return the answer to the oldest request.

        Raises:
            WireError: the connection is lost, or no answer came in time.
        """
        return decode_map(self._patient(self._channel.recv))

    def close(self) -> None:
        """End the connection."""
        self._channel.abort()

    def _patient(self, call: Callable[[float], T]) -> T:
        """Repeat a call, which has a time limit, until it succeeds; return its result."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            with suppress(TimeoutError):
                return call(BEAT_S)
            self._beat()
            if time.monotonic() > deadline:
                raise WireError(f"the policy worker did not answer within {self._timeout_s:g} s")

    def _greet(self, token: bytes) -> None:
        theirs, ours = str(self.answer().get("nonce")), secrets.token_hex(16)
        self.ask({"nonce": ours, "proof": proof(token, "worker", theirs)})
        if not same_token(self.answer().get("proof"), proof(token, "policy", ours)):
            raise WireError(f"{self.address[0]}:{self.address[1]} does not know the token")
        self._channel.max_bytes = MAX_MESSAGE


@dataclass(eq=False)
class _Client:
    """Connection to an environment worker.

    Attributes:
        channel: its messages.
        nonce: the nonce to which it must answer, or None after it has proved that it knows the token.
        closed: true after the end of the connection.
    """

    channel: Channel
    nonce: str | None
    closed: bool = False


@dataclass(frozen=True)
class PendingRequest:
    """A request and the client that waits for its answer."""

    content: dict[str, Any]
    client: _Client


class RequestServer:
    """Listens for environment workers, in one thread that never waits for one of them.

    All methods but :meth:`wake` must be called from one thread. While that thread computes, requests wait in the
    buffers of their sockets; :meth:`requests` then finds all of them.

    Args:
        host: address on which to listen.
        token: token that clients must know.
    """

    def __init__(self, host: str, token: bytes) -> None:
        self._token, self._waiting = token, deque[PendingRequest]()
        self._strangers = Lobby[_Client](MAX_STRANGERS, STRANGER_S)
        self._unread: dict[_Client, int] = {}  # clients with received bytes that are not read yet
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
        ready = dict(self._unread)
        at_once = self._waiting or ready
        for key, events in self._selector.select(0.0 if at_once else self._strangers.patience_s()):
            if isinstance(key.data, _Client):
                ready[key.data] = ready.get(key.data, 0) | events
            else:
                key.data()
        for client, events in ready.items():
            if not client.closed:
                self._attend(client, events)
        while self._strangers.patience_s() == 0.0:
            self._end(self._strangers.oldest(), "it did not show in time that it knows the token")
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    def answer(self, request: PendingRequest, content: Mapping[str, Any]) -> None:
        """Send an answer; if the client is gone, drop it."""
        if not request.client.closed:
            self._send(request.client, content)

    def wake(self) -> None:
        """Make :meth:`requests` return; may be called from any thread."""
        self._wakes.send(b"\0")

    def close(self) -> None:
        """End all connections."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Client):
                key.data.channel.abort()
        for sock in (self._listener, self._woken, self._wakes):
            sock.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            LOG.warning("a connection was not accepted: %s", error)
            # The process may have no file descriptor left: free one.
            self._end(self._strangers.oldest(), "there are too many")
            return
        nonce = secrets.token_hex(16)
        client = _Client(Channel(Stream(sock), GREETING_BYTES, linger_s=0.0), nonce)
        self._selector.register(client.channel, selectors.EVENT_READ, client)
        self._end(self._strangers.enter(client), "there are too many")
        self._send(client, {"nonce": nonce})

    def _wake_up(self) -> None:
        self._woken.recv(4096)

    def _attend(self, client: _Client, events: int) -> None:
        """Send the rest of the answers, and read complete messages."""
        try:
            with suppress(TimeoutError):
                if events & selectors.EVENT_WRITE:
                    client.channel.flush(0.0)
                if events & selectors.EVENT_READ and len(self._waiting) < MAX_REQUESTS:
                    self._read(client)
        except WireError as error:
            self._end([client], error)
        else:
            self._listen(client)

    def _read(self, client: _Client) -> None:
        """Read at most ``MAX_TOGETHER`` received messages; others stay in the connection, and their sender waits."""
        self._unread.pop(client, None)
        for _ in range(MAX_TOGETHER):
            message = decode_map(client.channel.recv(0.0))
            if client.nonce is None:
                self._waiting.append(PendingRequest(message, client))
            else:
                self._admit(client, client.nonce, message)
            if client.channel.emptied:
                return
        self._unread[client] = selectors.EVENT_READ

    def _admit(self, client: _Client, nonce: str, message: Mapping[str, Any]) -> None:
        if not same_token(message.get("proof"), proof(self._token, "worker", nonce)):
            raise WireError("it does not know the token")
        client.nonce, client.channel.max_bytes = None, MAX_MESSAGE
        self._strangers.leave(client)
        self._send(client, {"proof": proof(self._token, "policy", str(message.get("nonce")))})

    def _send(self, client: _Client, content: Mapping[str, Any]) -> None:
        """Send as much of a message as the connection takes; the rest waits."""
        try:
            client.channel.post(encode_parts(content))
            with suppress(TimeoutError):
                client.channel.flush(0.0)
        except WireError as error:
            self._end([client], error)
        else:
            self._listen(client)

    def _listen(self, client: _Client) -> None:
        """Watch for writability only if something remains to be sent."""
        if not client.closed:
            write = selectors.EVENT_WRITE if client.channel.unsent else 0
            self._selector.modify(client.channel, selectors.EVENT_READ | write, client)

    def _end(self, clients: list[_Client], reason: object) -> None:
        for client in clients:
            if not client.closed:
                LOG.info("an environment worker is gone: %s", reason)
                self._strangers.leave(client)
                self._unread.pop(client, None)
                self._selector.unregister(client.channel)
                client.channel.abort()
                client.closed = True
