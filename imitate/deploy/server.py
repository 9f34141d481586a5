"""A policy server: WebSocket, msgpack with numpy, the messages that openpi's clients speak, and more for ours.

On a connection the server first sends one map, the metadata. With openpi's clients it then alternates: an observation
as a flat map, optionally with ``prompt``; the answer ``{"actions": (K, A), "server_timing": {...}}``, planned anew each
time. Our client finds ``imitate`` in the metadata and sends maps with a header under ``imitate``:

    {"imitate": {"kind": "observe", "id": 7, "t": 12.3}, "obs": {...}, "goal": {...}}    the next step of an episode
        -> {"imitate": {"kind": "action", "id": 7, "t": 12.3, ...timing}, "action": (A,), "chunk": (K, A)}
    {"imitate": {"kind": "begin", "id": 8}, "lang": "..."}        a new episode           -> kind "begun"
    {"imitate": {"kind": "cut", "id": 9}}                         forget what is planned  -> kind "cut"
    {"imitate": {"kind": "ping", "id": 10}}                                               -> kind "pong"

A request that cannot be answered gets kind ``error`` with one line, and the session goes on; of observations that wait
behind each other the newest is answered, the others get kind ``dropped``. Openpi's clients get errors as a text frame.
What is no message at all ends the connection. Each connection is a session with its own memory of the policy.

Needs websockets and msgpack (``pip install "imitate[deploy]"``).
"""

from __future__ import annotations

import hmac
import logging
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from imitate import __version__
from imitate.deploy.scheduling import Answer, Scheduler
from imitate.deploy.schema import PROTOCOL, Schema
from imitate.deploy.transport import Channel, ClosedError, Handshake
from imitate.deploy.wire import MAX_MESSAGE, WireError, decode, encode
from imitate.errors import UserError

LOG = logging.getLogger(__name__)
HEADER = "imitate"
"""Key of a message's header."""
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_TOKEN_BYTES = 16
_HANDSHAKE_S = 10.0
_SEND_S = 10.0
_PING_S = 20.0


@dataclass
class Ask:
    """One observation of one session.

    Attributes:
        state: memory of the session, from :meth:`Served.begin` or the last prediction.
        obs: arrays by key as in the schema.
        goal: the same for the goal, empty where the policy has none.
        lang: instruction of the episode, if any.
    """

    state: Any
    obs: Mapping[str, NDArray[Any]]
    goal: Mapping[str, NDArray[Any]]
    lang: str | None


@dataclass
class Prediction:
    """The answer of a policy.

    Attributes:
        action: (A,) in the units of the demonstrations.
        chunk: (K, A) planned from this step on, the action first.
        state: memory after this step.
    """

    action: NDArray[np.float64]
    chunk: NDArray[np.float64]
    state: Any


class Served(Protocol):
    """A policy as the server needs it."""

    schema: Schema

    def begin(self, lang: str | None) -> Any:
        """The memory of an episode that begins. Raises UserError where the policy does not know the instruction."""

    def cut(self, state: Any) -> Any:
        """The memory without actions that are planned and not yet taken."""

    def predict(self, asks: Sequence[Ask]) -> Sequence[Prediction]:
        """Answer the observations of several sessions at once."""


@dataclass
class _Session:
    number: int
    state: Any
    lang: str | None = None
    total_ms: float | None = None
    answered: int = 0


@dataclass
class Statistics:
    """Number of events since the start."""

    sessions: int = 0
    answered: int = 0
    dropped: int = 0
    errors: int = 0
    refused: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, name: str) -> int:
        """Add 1 to one of the numbers, and return it."""
        with self.lock:
            number: int = getattr(self, name) + 1
            setattr(self, name, number)
            return number


class PolicyServer:
    """Serves one policy to several clients. Use as a context manager, or call :meth:`close`.

    Args:
        served: the policy.
        host: address to listen on. Any but loopback needs a ``token``.
        port: 0: a free one, see :attr:`port`.
        token: clients have to send it as ``Authorization: Bearer TOKEN`` (or openpi's ``Api-Key TOKEN``).
        tls: certificate and key, for ``wss://``.
        max_sessions: connections at a time; more are refused with status 503.
        idle_s: a session without a message for so long is ended.
        max_bytes: of one message.

    Raises:
        UserError: the host is open to others and there is no token, the token is short, or the port is taken.
    """

    def __init__(
        self,
        served: Served,
        host: str = "127.0.0.1",
        port: int = 8000,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        max_sessions: int = 64,
        idle_s: float = 300.0,
        max_bytes: int = MAX_MESSAGE,
    ) -> None:
        if token is None and host not in _LOOPBACK:
            raise UserError(
                f"the server would listen on '{host}', where others reach it: give it a token (--token-file), or "
                "leave it on 127.0.0.1"
            )
        if token is not None and len(token) < _TOKEN_BYTES:
            raise UserError(
                f"the token has {len(token)} characters; wanted at least {_TOKEN_BYTES}"
            )
        self.statistics = Statistics()
        self._served, self._token = served, token
        self._idle_s, self._max_bytes, self._max_sessions = idle_s, max_bytes, max_sessions
        self._scheduler: Scheduler[Ask, Prediction] = Scheduler(served.predict)
        self._tls = tls
        self._lock = threading.Lock()
        self._channels: set[Channel] = set()
        self._closed = threading.Event()
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family, backlog=max_sessions)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"cannot listen on {host}:{port}: {reason}") from error
        self.host, self.port = host, int(self._listener.getsockname()[1])
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Address for clients on this machine."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'wss' if self._tls else 'ws'}://{host}:{self.port}"

    def serve_forever(self) -> None:
        """Answer clients until :meth:`close` is called, from another thread or a signal handler."""
        while not self._closed.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if self._closed.is_set():
                    return
                LOG.warning("a connection was not accepted: %s", error)
                self._closed.wait(0.1)  # as when all file descriptors are taken
                continue
            threading.Thread(target=self._welcome, args=(sock,), daemon=True).start()

    def __enter__(self) -> PolicyServer:
        self._thread = threading.Thread(
            target=self.serve_forever, name="policy server", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all sessions and free the port."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        with self._lock:
            channels = list(self._channels)
        for channel in channels:
            channel.abort()
        if self._thread is not None:
            self._thread.join(5)

    # ---- connections -----------------------------------------------------------------------------

    def _welcome(self, sock: socket.socket) -> None:
        """The life of one connection, in a thread of its own."""
        try:
            sock.settimeout(_HANDSHAKE_S)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            handshake = Handshake(sock, _HANDSHAKE_S, self._max_bytes)
            channel = self._admitted(handshake)
        except (OSError, ValueError):
            sock.close()
            return
        if channel is None:
            return
        try:
            self._serve(channel)
        finally:
            with self._lock:
                self._channels.discard(channel)

    def _admitted(self, handshake: Handshake) -> Channel | None:
        """Answer ``/healthz``, and refuse clients without the token or beyond the number of sessions."""
        if handshake.request.path == "/healthz":
            handshake.answer(200, "OK\n")
            return None
        words = handshake.request.headers.get_all("Authorization")
        if not self._knows_token(words[0] if len(words) == 1 else ""):
            self.statistics.count("refused")
            handshake.answer(401, "wrong or missing token\n")
            return None
        with self._lock:
            free = len(self._channels) < self._max_sessions
            if free:
                self._channels.add(handshake.channel)
        if not free:
            self.statistics.count("refused")
            handshake.answer(503, "all sessions are taken\n")
            return None
        channel = None
        try:
            channel = handshake.accept()
        finally:
            if channel is None:
                with self._lock:
                    self._channels.discard(handshake.channel)
        return channel

    def _knows_token(self, header: str) -> bool:
        if self._token is None:
            return True
        scheme, _, word = header.partition(" ")
        same = hmac.compare_digest(word.strip().encode(), self._token.encode())
        return same and scheme.lower() in ("bearer", "api-key")

    def _serve(self, channel: Channel) -> None:
        """One session."""
        session = _Session(self.statistics.count("sessions"), None)
        try:
            channel.send(encode(self._metadata(session)), _SEND_S)
            while True:
                self._answer_all(channel, session, self._received(channel))
        except TimeoutError:
            channel.close(1001, "no message for too long")
        except ClosedError:
            channel.abort()
        except WireError as error:
            self.statistics.count("errors")
            channel.close(1007, _one_line(error, 100))
        except BaseException:
            channel.abort()
            raise

    def _metadata(self, session: _Session) -> dict[str, Any]:
        schema = self._served.schema
        return {
            HEADER: {
                "protocol": PROTOCOL,
                "version": __version__,
                "session": session.number,
                "schema": schema.to_dict(),
                "schema_hash": schema.hash,
                "jpeg": True,
                "max_bytes": self._max_bytes,
            }
        }

    def _received(self, channel: Channel) -> list[dict[str, Any]]:
        """All messages that wait, at least one."""
        messages = [self._decoded(self._awaited(channel))]
        with suppress(TimeoutError):
            while True:
                messages.append(self._decoded(channel.recv(0.0)))
        return messages

    def _awaited(self, channel: Channel) -> bytes | str:
        """The next message; a client that gives no sign of life meanwhile is asked for one."""
        waited = 0.0
        while True:
            patience = min(_PING_S, self._idle_s - waited)
            try:
                return channel.recv(patience)
            except TimeoutError:
                waited += patience
                if waited >= self._idle_s:
                    raise
                channel.ping(_SEND_S)

    def _decoded(self, data: str | bytes) -> dict[str, Any]:
        if isinstance(data, str):
            raise WireError("a text frame is no message")
        message = decode(data, self._max_bytes)
        if not isinstance(message, dict):
            raise WireError("a message is a map")
        return message

    def _answer_all(
        self, channel: Channel, session: _Session, messages: list[dict[str, Any]]
    ) -> None:
        for position, message in enumerate(messages):
            header = message.get(HEADER)
            if header is None:
                self._answer_openpi(channel, session, message)
                continue
            if not isinstance(header, dict):
                raise WireError("the header of a message is a map")
            later = messages[position + 1 :]
            kind = header.get("kind")
            if kind == "observe" and any(_kind(other) == "observe" for other in later):
                self.statistics.count("dropped")
                channel.send(encode(_reply(header, "dropped")), _SEND_S)
                continue
            channel.send(encode(self._answer(session, header, message)), _SEND_S)

    # ---- messages --------------------------------------------------------------------------------

    def _answer(
        self, session: _Session, header: Mapping[str, Any], message: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The reply to one message of our client."""
        kind = header.get("kind")
        try:
            if kind == "observe":
                return self._observed(session, header, message)
            if kind == "begin":
                self._begin(session, _text(message.get("lang")))
                return _reply(header, "begun")
            if kind == "cut":
                if session.state is not None:
                    session.state = self._served.cut(session.state)
                return _reply(header, "cut")
            if kind == "ping":
                return _reply(header, "pong")
            raise WireError(f"a message of kind {str(kind)[:20]!r} is unknown")
        except Exception as error:
            return {**_reply(header, "error"), "error": self._told(error)}

    def _begin(self, session: _Session, lang: str | None) -> None:
        session.state = self._served.begin(lang)
        session.lang = lang

    def _observed(
        self, session: _Session, header: Mapping[str, Any], message: Mapping[str, Any]
    ) -> dict[str, Any]:
        answer = self._predicted(session, message.get("obs"), message.get("goal"))
        reply = _reply(
            header,
            "action",
            queued_ms=answer.queued_ms,
            infer_ms=answer.infer_ms,
            together=answer.together,
        )
        return {**reply, "action": answer.reply.action, "chunk": answer.reply.chunk}

    def _predicted(self, session: _Session, obs: Any, goal: Any) -> Answer[Prediction]:
        schema = self._served.schema
        if not isinstance(obs, dict) or not isinstance(goal, dict | None):
            raise WireError("an observation is a map of arrays")
        ask_obs = schema.select(obs)
        ask_goal = schema.select(goal or {}, goal=True) if schema.goals else {}
        if session.state is None:
            self._begin(session, session.lang)
        answer = self._scheduler(Ask(session.state, ask_obs, ask_goal, session.lang))
        session.state = answer.reply.state
        session.answered += 1
        self.statistics.count("answered")
        return answer

    def _answer_openpi(
        self, channel: Channel, session: _Session, message: Mapping[str, Any]
    ) -> None:
        """Answer an observation of openpi's client: the actions from now on, planned anew."""
        began = time.perf_counter()
        try:
            lang = _text(message.get("prompt"))
            if session.state is None or lang != session.lang:
                self._begin(session, lang)
            session.state = self._served.cut(session.state)
            answer = self._predicted(session, dict(message), None)
        except Exception as error:
            channel.send(self._told(error), _SEND_S)
            return
        timing = {"infer_ms": answer.infer_ms, "queued_ms": answer.queued_ms}
        if session.total_ms is not None:
            timing["prev_total_ms"] = session.total_ms
        channel.send(encode({"actions": answer.reply.chunk, "server_timing": timing}), _SEND_S)
        session.total_ms = 1e3 * (time.perf_counter() - began)

    def _told(self, error: Exception) -> str:
        """One line for the client: no traceback and no path; the server's log has the rest."""
        self.statistics.count("errors")
        if isinstance(error, UserError | WireError):
            return _one_line(error)
        LOG.error("a prediction failed", exc_info=error)
        return "the server failed to predict; its log says why"


def _kind(message: Mapping[str, Any]) -> Any:
    header = message.get(HEADER)
    return header.get("kind") if isinstance(header, dict) else None


def _reply(header: Mapping[str, Any], kind: str, **more: float) -> dict[str, Any]:
    """The header of a reply: the request's id and time stamp come back as they were."""
    echoed = {
        name: header[name] for name in ("id", "t") if isinstance(header.get(name), int | float)
    }
    return {HEADER: {"kind": kind, **echoed, **more}}


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise WireError("an instruction is text")


def _one_line(error: Exception, length: int = 500) -> str:
    return " ".join(str(error).split())[:length].encode("ascii", "replace").decode()
