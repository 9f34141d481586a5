"""Client of a policy server: a policy on another machine, called like a local one.

    from imitate.deploy.server.client import RemotePolicy

    with RemotePolicy("ws://127.0.0.1:8000") as policy:
        policy.start_episode()
        action = policy(observation)

Needs numpy, websockets and msgpack; no torch. The client works with ``imitate serve`` and with openpi's policy server.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate.deploy.resizing import Resizer
from imitate.deploy.schema import HEADER, PROTOCOL, Schema
from imitate.deploy.server.handshake import RefusedError, connected
from imitate.errors import NotFiniteError, UserError, WireError
from imitate.policy.checks import as_array
from imitate.system import clock
from imitate.system.channel.frames import Channel
from imitate.system.channel.messages import MAX_MESSAGE, Jpeg, decode, decode_map, encode_parts

__all__ = ["HEADER", "BadAnswerError", "RemoteError", "RemotePolicy"]


_ROUNDING = 1e-5
"""Fraction of an action's size by which it may exceed a limit because of rounding."""


class RemoteError(ConnectionError):
    """The server was not reached, did not answer in time, or closed the connection. The next call reconnects."""


class BadAnswerError(RemoteError):
    """The server's answer does not fit the schema of the policy that it serves."""


class RemotePolicy:
    """Policy with the interface of :class:`imitate.RolloutPolicy`, answered by a server.

    After a :class:`RemoteError` the next call reconnects and restarts the episode on the server: the policy's memory of
    earlier observations is lost.

    Args:
        url: ``ws://host:port``, or ``wss://`` with TLS.
        token: token of the server.
        timeout_s: longest duration of a call, from request to answer.
        connect_s: longest time to reach the server and to read its schema.
        jpeg: quality from 1 to 95 with which (H, W, 3) uint8 images are sent as JPEG; None sends raw pixels. JPEG helps
            on slow networks, but the policy gets lossy images.
        tls: TLS context that trusts the server's certificate; None to trust the system's authorities.
        resize: true to resize images to the sizes in the demonstrations before they are sent; see
            :mod:`imitate.deploy.resizing`.

    Raises:
        RemoteError: the server cannot be reached.
        UserError: the server refused the token or uses another version of the protocol, or the URL is malformed.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = 1.0,
        connect_s: float = 5.0,
        jpeg: int | None = None,
        tls: ssl.SSLContext | None = None,
        resize: bool = False,
    ) -> None:
        self._url, self._token, self._tls = url, token, tls
        self._timeout_s, self._connect_s, self._jpeg = timeout_s, connect_s, jpeg
        self._resize = resize
        self._resizer: Resizer | None = None
        self._connection: Channel | None = None
        self._is_ours: bool | None = None
        self._lang: str | None = None
        self._number = 0
        self._chunk: NDArray[np.float64] | None = None
        self._began: bool
        self.timing: dict[str, float] = {}
        self.schema: Schema | None = None
        self.metadata: dict[str, Any] = {}
        self.weights = ""
        self._ask_connection(clock.now() + connect_s)

    # ---- what is known of the policy --------------------------------------------------------------

    @property
    def control_freq(self) -> float | None:
        """Control rate of the demonstrations in Hz, or None if unknown."""
        return None if self.schema is None else self.schema.rate_hz

    @property
    def obs_keys(self) -> tuple[str, ...]:
        """Keys that an observation needs; empty if an openpi server does not report them."""
        return () if self.schema is None else tuple(self.schema.observations)

    @property
    def number_names(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the dimensions of observations and of ``actions``, by key, if the demonstrations have names."""
        return {} if self.schema is None else self.schema.names

    @property
    def history(self) -> int:
        """Number of observations that :meth:`predict_chunk` uses, the newest and the ones before it."""
        return 1 if self.schema is None else max(self.schema.history, 1)

    @property
    def execute(self) -> int:
        """Number of actions of a chunk that are executed before the next prediction; 1 for an openpi server."""
        return 1 if self.schema is None else self.schema.execute

    @property
    def max_prefix(self) -> int:
        """Largest number of planned actions that :meth:`predict_chunk` accepts."""
        return 0 if self.schema is None else self.schema.max_prefix

    # ---- acting ----------------------------------------------------------------------------------

    def start_episode(self, lang: str | None = None) -> None:
        """Begin a new episode; ``lang`` is the instruction of a multi-task policy."""
        self._lang, self._chunk = lang, None
        deadline = clock.now() + self._timeout_s
        self._began = False
        self._begin(self._ask_connection(deadline), deadline)

    def __call__(
        self, ob: Mapping[str, ArrayLike], goal: Mapping[str, ArrayLike] | None = None
    ) -> NDArray[np.float64]:
        """Return the action (A,) for an observation, in the units of the demonstrations.

        Args:
            ob: raw observation by key, see :attr:`schema`; other keys are not sent.
            goal: observations of the goal, if the policy has one.

        Raises:
            RemoteError: no answer came within ``timeout_s``, the connection was lost, or the answer does not fit the
                schema.
            NotFiniteError: the observation has NaN or infinity; nothing was sent.
            UserError: the observation does not fit the schema, or the server refused it.
        """
        began = clock.now()
        deadline = began + self._timeout_s
        connection = self._ask_connection(deadline)
        if self.schema is None:
            first: NDArray[np.float64] = self._ask_openpi(connection, ob, deadline)[0]
            return first
        message = {"obs": self._selected(self.schema, ob)}
        if self.schema.goals:
            message["goal"] = self._selected(self.schema, goal or {}, goal=True)
        self._begin(connection, deadline)
        reply = self._exchange(connection, "observe", message, deadline)
        action = self._checked(reply.get("action"), 1)
        self._chunk = self._checked(reply.get("chunk"), 2)
        self._note_timing(began, reply[HEADER])
        return action

    def predict_chunk(
        self,
        history: Sequence[Mapping[str, ArrayLike]],
        planned: ArrayLike | None = None,
        delay: int = 0,
        guidance: str = "identity",
    ) -> NDArray[np.float64]:
        """Predict the actions that begin at the newest observation; see :meth:`imitate.RolloutPolicy.predict_chunk`.

        The memory of the session stays unchanged. To an openpi server only the newest observation is sent.

        Args:
            history: raw observations of successive control steps, the newest last; the last :attr:`history` are sent.
            planned: (n, A) actions with which the chunk must agree.
            delay: how many actions of ``planned`` are executed before the chunk arrives.
            guidance: method by which the chunk is made to agree with ``planned``.

        Returns:
            (K, A) in the units of the demonstrations.

        Raises:
            RemoteError: no answer within ``timeout_s``, or the connection was lost.
            NotFiniteError: an observation has NaN or infinity; nothing was sent.
            UserError: an observation does not fit the schema, or the server's policy predicts no chunks, or cannot make
                them agree with planned actions.
        """
        if not history:
            raise UserError("history is empty; expected at least one observation")
        began = clock.now()
        deadline = began + self._timeout_s
        connection = self._ask_connection(deadline)
        if self.schema is None:
            if planned is not None:
                raise UserError(
                    f"{self._url}: an openpi server does not accept planned actions: join chunks by blend, fade or "
                    "replace"
                )
            return self._ask_openpi(connection, history[-1], deadline)
        message: dict[str, Any] = {
            "history": [self._selected(self.schema, ob) for ob in history[-self.history :]]
        }
        if planned is not None:
            actions = np.asarray(planned, dtype=np.float64)
            message |= {"planned": actions, "delay": int(delay), "guidance": guidance}
        self._begin(connection, deadline)
        reply = self._exchange(connection, "predict", message, deadline)
        self._note_timing(began, reply[HEADER])
        return self._checked(reply.get("chunk"), 2)

    def check(self, ob: Mapping[str, ArrayLike]) -> None:
        """Raise NotFiniteError if an observation, in which keys may be missing, has NaN or infinity; send nothing."""
        for key in self.obs_keys or ob:
            if key in ob:
                _refuse_not_finite(key, as_array(key, ob[key]))

    def planned_actions(self) -> NDArray[np.float64] | None:
        """Planned actions (K, A), beginning with the last returned one; None before the first call."""
        return None if self._chunk is None else self._chunk.copy()

    def cut_plan(self) -> None:
        """Discard the remaining planned actions, for example after a person moved the robot."""
        deadline = clock.now() + self._timeout_s
        connection = self._ask_connection(deadline)
        if self.schema is not None:
            self._exchange(connection, "cut", {}, deadline)

    def ping(self) -> float:
        """Return the milliseconds of a round trip without a prediction."""
        began = clock.now()
        deadline = began + self._timeout_s
        connection = self._ask_connection(deadline)
        if self.schema is not None:
            self._exchange(connection, "ping", {}, deadline)
        return 1e3 * (clock.now() - began)

    def close(self) -> None:
        """End the session."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> RemotePolicy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- connection ------------------------------------------------------------------------------

    def _ask_connection(self, deadline: float) -> Channel:
        """Return the open connection; connect if it is closed."""
        if self._connection is not None:
            return self._connection
        began = clock.now()
        left = min(self._connect_s, max(deadline - began, 0.01))
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            connection = connected(self._url, left, MAX_MESSAGE, headers, self._tls)
        except RefusedError as error:
            raise self._refusal(error.status) from error
        except ssl.SSLCertVerificationError as error:
            raise UserError(
                f"{self._url}: the server's certificate is not trusted ({error.verify_message}): give the certificate "
                "of the authority that signed it with --tls-ca FILE (in Python: tls=)"
            ) from error
        except ssl.SSLError as error:
            raise RemoteError(
                f"{self._url} cannot be reached by TLS ({error.reason}): the address of a server without TLS (imitate "
                "serve without --tls-cert) begins with ws://"
            ) from error
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise RemoteError(
                f"{self._url} was not reached: {reason}; start `imitate serve` there"
            ) from error
        try:
            data = connection.recv(max(began + left - clock.now(), 0.0))
            self._read_metadata(decode_map(data))
        except (TimeoutError, WireError) as error:
            connection.abort()
            raise RemoteError(
                f"{self._url} sent no valid schema: {error}; start `imitate serve` there"
            ) from error
        except BaseException:
            connection.abort()
            raise
        self._connection, self._began = connection, False
        return connection

    def _refusal(self, status: int) -> Exception:
        if status == 401:
            return UserError(
                f"{self._url} refused the token: give the token with which the server was started"
            )
        if status == 503:
            return RemoteError(f"{self._url}: all sessions are in use")
        return RemoteError(f"{self._url} answered with status {status}")

    def _read_metadata(self, metadata: dict[str, Any]) -> None:
        ours = metadata.get(HEADER)
        is_ours = isinstance(ours, dict)
        if self._is_ours not in (None, is_ours):
            raise UserError(
                f"{self._url} now serves another policy: one server is openpi's and the other is not; start again, or "
                "make a new RemotePolicy"
            )
        self.metadata, self._is_ours = metadata, is_ours
        if not isinstance(ours, dict):
            self.schema = None  # only openpi's servers send no such entry
            if self._resize:
                raise UserError(
                    f"{self._url}: an openpi server does not report the image sizes that it expects, so images cannot "
                    "be resized: leave --resize out"
                )
            return
        if ours.get("protocol") != PROTOCOL:
            raise UserError(
                f"{self._url} uses version {ours.get('protocol')} of the protocol (imitate {ours.get('version')}), "
                f"but this client version {PROTOCOL}: install the same version of imitate on both machines"
            )
        schema = Schema.from_dict(ours.get("schema") or {})
        schema.check()
        if self.schema is not None and schema.hash != self.schema.hash:
            raise UserError(
                f"{self._url} now serves another policy: its observations or actions differ "
                "from those at the beginning; start the episode again, or make a new RemotePolicy"
            )
        weights = str(ours.get("weights") or "")
        if weights and self.weights and weights != self.weights:
            raise UserError(
                f"{self._url} now serves another policy: its weights differ from those at the "
                "beginning; start the episode again, or make a new RemotePolicy"
            )
        self.schema, self.weights = schema, weights or self.weights
        self._resizer = Resizer(schema) if self._resize else None

    def _lost(self, reason: str) -> RemoteError:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        return RemoteError(f"{self._url}: {reason}")

    # ---- messages --------------------------------------------------------------------------------

    def _begin(self, connection: Channel, deadline: float) -> None:
        """Send the message that begins an episode, once per connection and per :meth:`start_episode`."""
        if self._began or self.schema is None:
            return
        self._exchange(connection, "begin", {"lang": self._lang}, deadline)
        self._began = True

    def _selected(
        self, schema: Schema, ob: Mapping[str, ArrayLike], goal: bool = False
    ) -> dict[str, Any]:
        """Return the arrays of an observation that the policy needs, in the form in which they are sent."""
        try:
            arrays = schema.select(ob if self._resizer is None else self._resizer(ob), goal)
        except WireError as error:
            raise UserError(str(error)) from error
        for key, value in arrays.items():
            _refuse_not_finite(key, value)
        if self._jpeg is None:
            return dict(arrays)
        return {
            key: Jpeg(value, self._jpeg)
            if value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] == 3
            else value
            for key, value in arrays.items()
        }

    def _checked(self, value: Any, dimensions: int) -> NDArray[np.float64]:
        """Check the actions of a server whose schema is known, and return them as an array.

        Raises:
            BadAnswerError: the actions are not finite, have another size than in the schema, or exceed its limits.
        """
        assert self.schema is not None
        try:
            actions = _actions(value, dimensions)
        except UserError as error:
            raise BadAnswerError(str(error)) from error
        if actions.shape[-1] != self.schema.action_dim:
            raise BadAnswerError(
                f"the server sent actions of {actions.shape[-1]} numbers, but its schema has {self.schema.action_dim}"
            )
        low, high = np.array(self.schema.action_low), np.array(self.schema.action_high)
        room = _ROUNDING * np.maximum(np.abs(actions), 1.0)
        odd = (low - actions > room) | (actions - high > room)
        if odd.any():
            place = int(np.flatnonzero(odd.reshape(-1, len(low)).any(axis=0))[0])
            worst = actions.reshape(-1, len(low))[:, place]
            raise BadAnswerError(
                f"the server sent an action beyond its own limits (number {place}: "
                f"{worst[np.abs(worst).argmax()]:.4g}, limits {low[place]:.4g} to {high[place]:.4g})"
            )
        return actions

    def _note_timing(self, began: float, header: Mapping[str, Any]) -> None:
        times = {
            name: float(header[name])
            for name in ("queued_ms", "infer_ms")
            if isinstance(header.get(name), int | float)
        }
        self.timing = {"total_ms": 1e3 * (clock.now() - began), **times}

    def _exchange(
        self, connection: Channel, kind: str, message: Mapping[str, Any], deadline: float
    ) -> dict[str, Any]:
        """Send a request and return the reply with its number; replies to earlier requests are skipped."""
        self._number += 1
        header = {"kind": kind, "id": self._number, "t": clock.now()}
        self._send(connection, {HEADER: header, **message}, deadline)
        while True:
            reply = self._receive(connection, deadline)
            fields = reply.get(HEADER) if isinstance(reply, dict) else None
            if not isinstance(fields, dict):
                raise self._lost(
                    "the server sent a message that is not a reply to a request: is it a server of "
                    "imitate serve?"
                )
            if fields.get("id") != self._number:
                continue
            if fields.get("kind") == "error":
                raise UserError(f"{self._url}: {_one_line(reply.get('error'))}")
            return dict(reply)

    def _send(self, connection: Channel, message: Mapping[str, Any], deadline: float) -> None:
        try:
            connection.send(encode_parts(message), max(deadline - clock.now(), 0.001))
        except OSError as error:
            raise self._lost(str(error)) from error

    def _receive(self, connection: Channel, deadline: float) -> Any:
        try:
            data = connection.recv(max(deadline - clock.now(), 0.0))
            return {"error": data} if isinstance(data, str) else decode(data)
        except TimeoutError as error:
            raise self._lost(f"the server sent no answer within {self._timeout_s} s") from error
        except WireError as error:
            raise self._lost(str(error)) from error

    def _ask_openpi(
        self, connection: Channel, ob: Mapping[str, ArrayLike], deadline: float
    ) -> NDArray[np.float64]:
        """Request a chunk (K, A) from an openpi server."""
        began = clock.now()
        message: dict[str, Any] = {key: as_array(key, value) for key, value in ob.items()}
        for key, value in message.items():
            _refuse_not_finite(key, value)
        if self._lang is not None:
            message["prompt"] = self._lang
        self._send(connection, message, deadline)
        reply = self._receive(connection, deadline)
        if not isinstance(reply, dict) or "actions" not in reply:
            text = reply.get("error") if isinstance(reply, dict) else None
            last = str(text or "an answer without actions").strip().splitlines()[-1:]
            raise UserError(f"{self._url}: {_one_line(*last)}")
        self._chunk = _actions(reply["actions"], 2)
        self._note_timing(began, {})
        return self._chunk.copy()


def _one_line(text: object = "") -> str:
    """Return a server's text in one line, so that it cannot imitate messages of this program."""
    return " ".join(str(text).split())[:500]


def _refuse_not_finite(key: str, value: NDArray[Any]) -> None:
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise NotFiniteError(f"observation '{key}' is not finite")


def _actions(value: Any, dimensions: int) -> NDArray[np.float64]:
    """Convert a server's actions to float64.

    Raises:
        UserError: the actions are not finite numbers in an array with ``dimensions`` axes.
    """
    array = np.array(value, dtype=np.float64) if isinstance(value, np.ndarray) else None
    if array is None or array.ndim != dimensions or not array.size or not np.isfinite(array).all():
        raise UserError("the server sent an action that is not an array of finite numbers")
    return array
