"""Sessions of a policy server: the messages of clients, and the policy's answers.

On a connection the server first sends one map, the metadata. Openpi's clients then send an observation as a flat map,
optionally with ``prompt``, and get the answer ``{"actions": (K, A), "server_timing": {...}}``, which is planned again
each time. The client of this project finds ``imitate`` in the metadata and sends maps with a header under ``imitate``:

    {"imitate": {"kind": "observe", "id": 7, "t": 12.3}, "obs": {...}, "goal": {...}}    the next step of an episode
        -> {"imitate": {"kind": "action", "id": 7, "t": 12.3, ...timing}, "action": (A,), "chunk": (K, A)}
    {"imitate": {"kind": "predict", "id": 8}, "history": [{...}], "planned": (n, A), "delay": 3, "guidance": "identity"}
        -> {"imitate": {"kind": "chunk", "id": 8, ...timing}, "chunk": (K, A)}
    {"imitate": {"kind": "begin", "id": 9}, "lang": "..."}        a new episode           -> kind "begun"
    {"imitate": {"kind": "cut", "id": 10}}                        forget what is planned  -> kind "cut"
    {"imitate": {"kind": "ping", "id": 11}}                                               -> kind "pong"

``predict`` neither reads nor changes the session's memory, only its instruction: see
:meth:`imitate.RolloutPolicy.predict_chunk`; ``planned``, ``delay`` and ``guidance`` may be omitted.

A request that cannot be answered gets a reply of kind ``error`` with one line, and the session continues. Of several
waiting observations only the newest is answered; the others get replies of kind ``dropped``. Openpi's clients get
errors as a text frame. Invalid data end the connection. Each connection is a session with its own memory of the policy.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from imitate import __version__
from imitate.deploy.schema import HEADER, PROTOCOL, Schema
from imitate.errors import UserError, WireError
from imitate.system import clock
from imitate.system.channel.messages import encode

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")


@dataclass
class TimedReply(Generic[ReplyT]):
    """A reply and its timing.

    Attributes:
        reply: reply of the policy.
        queued_ms: milliseconds until the prediction began.
        infer_ms: milliseconds of the prediction.
        together: number of requests answered by the same prediction.
    """

    reply: ReplyT
    queued_ms: float
    infer_ms: float
    together: int


@dataclass
class _Job(Generic[RequestT, ReplyT]):
    request: RequestT
    arrived: float = field(default_factory=lambda: clock.now())
    answer: TimedReply[ReplyT] | None = None
    error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self.answer is not None or self.error is not None


class Scheduler(Generic[RequestT, ReplyT]):
    """Runs one prediction at a time, for all requests that are waiting when the prediction begins.

    A request therefore waits for at most one prediction before its own. The prediction runs in the thread of one of the
    requests, so that a single client causes no thread switches.

    Args:
        predict: function from requests to equally many replies in the same order; it may raise errors.
    """

    def __init__(self, predict: Callable[[Sequence[RequestT]], Sequence[ReplyT]]) -> None:
        self._predict = predict
        self._changed = threading.Condition()
        self._waiting: list[_Job[RequestT, ReplyT]] = []
        self._busy = False

    @property
    def waiting(self) -> int:
        """Number of requests that wait for the next prediction."""
        return len(self._waiting)

    def __call__(self, request: RequestT) -> TimedReply[ReplyT]:
        """Return the answer to a request; may be called from any thread.

        Raises:
            Exception: the error that ``predict`` raised for this request.
        """
        job: _Job[RequestT, ReplyT] = _Job(request)
        with self._changed:
            self._waiting.append(job)
            clock.wait_for(self._changed, lambda: not self._busy or job.done)
            batch: list[_Job[RequestT, ReplyT]] = []
            if not job.done:
                self._busy = True
                batch, self._waiting = self._waiting, []
        if batch:
            try:
                self._run(batch)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
        if job.error is not None:
            raise job.error
        assert job.answer is not None
        return job.answer

    def _run(self, batch: list[_Job[RequestT, ReplyT]]) -> None:
        """Answer a batch of requests; if it fails, answer each separately, so that one cannot break others."""
        try:
            self._answer(batch)
        except BaseException as error:
            if len(batch) == 1 or not isinstance(error, Exception):
                for job in batch:
                    job.error = error
                return
            for job in batch:
                self._run([job])

    def _answer(self, batch: list[_Job[RequestT, ReplyT]]) -> None:
        began = clock.now()
        replies = self._predict([job.request for job in batch])
        if len(replies) != len(batch):
            raise RuntimeError(f"{len(batch)} requests got {len(replies)} replies")
        took = 1e3 * (clock.now() - began)
        for job, reply in zip(batch, replies, strict=True):
            job.answer = TimedReply(reply, 1e3 * (began - job.arrived), took, len(batch))


LOG = logging.getLogger(__name__)
_NEWEST_ONLY = ("observe", "predict")


@dataclass
class Ask:
    """One observation of one session.

    Attributes:
        state: memory of the session, from :meth:`Served.begin` or the last prediction.
        obs: arrays by key as in the schema.
        goal: arrays of the goal by key; empty if the policy has none.
        lang: instruction of the episode, or None.
    """

    state: Any
    obs: Mapping[str, NDArray[Any]]
    goal: Mapping[str, NDArray[Any]]
    lang: str | None


@dataclass
class ChunkAsk:
    """The last observations of one session, from which a chunk is predicted.

    Attributes:
        state: memory of the session, of which only the instruction is used.
        history: arrays by key as in the schema, of successive control steps, the newest last.
        planned: (n, A) actions with which the chunk must agree, or None.
        delay: number of actions of ``planned`` that are executed before the chunk arrives.
        guidance: method by which the chunk is made to agree, or None if nothing is planned.
    """

    state: Any
    history: Sequence[Mapping[str, NDArray[Any]]]
    planned: NDArray[np.float64] | None = None
    delay: int = 0
    guidance: str | None = None


@dataclass
class Prediction:
    """The answer of a policy.

    Attributes:
        action: (A,) in the units of the demonstrations.
        chunk: (K, A) planned actions, beginning with ``action``.
        state: memory after this step.
    """

    action: NDArray[np.float64]
    chunk: NDArray[np.float64]
    state: Any


class Served(Protocol):
    """Interface of a policy for the server.

    A policy may also have ``weights``, the SHA-256 of its file, by which clients notice that another policy is served.
    """

    schema: Schema

    def begin(self, lang: str | None) -> Any:
        """Return the memory at the beginning of an episode. Raises UserError for an unknown instruction."""

    def cut(self, state: Any) -> Any:
        """Return the memory without planned actions."""

    def predict(self, asks: Sequence[Ask]) -> Sequence[Prediction]:
        """Answer the observations of several sessions at once."""

    def predict_chunks(self, asks: Sequence[ChunkAsk]) -> Sequence[NDArray[np.float64]]:
        """Predict chunks (K, A) for several sessions, whose memories stay unchanged.

        Called only if ``schema.history`` is not 0.
        """


@dataclass
class ServerStatistics:
    """Counts of events since the server started."""

    sessions: int = 0
    answered: int = 0
    dropped: int = 0
    errors: int = 0
    refused: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, name: str) -> int:
        """Add 1 to a count, and return the new value."""
        with self.lock:
            number: int = getattr(self, name) + 1
            setattr(self, name, number)
            return number


Request = Ask | ChunkAsk
Reply = Prediction | NDArray[np.float64]


class Desk:
    """State that all sessions of a server share: the policy, and the queues of requests.

    Args:
        served: the policy.
    """

    def __init__(self, served: Served) -> None:
        self.served, self.statistics = served, ServerStatistics()
        self.ask: Scheduler[Request, Reply] = Scheduler(self._predict)

    def _predict(self, requests: Sequence[Request]) -> Sequence[Reply]:
        """Answer the requests of several sessions, with one prediction for each kind of request."""
        asks = [request for request in requests if isinstance(request, Ask)]
        chunk_asks = [request for request in requests if isinstance(request, ChunkAsk)]
        steps = iter(self.served.predict(asks) if asks else ())
        chunks = iter(self.served.predict_chunks(chunk_asks) if chunk_asks else ())
        return [next(steps) if isinstance(request, Ask) else next(chunks) for request in requests]

    def metadata(self, session: int, max_bytes: int) -> dict[str, Any]:
        """Return the metadata, the first message to a client."""
        schema = self.served.schema
        weights = str(getattr(self.served, "weights", ""))
        origin = {"weights": weights} if weights else {}
        return {
            HEADER: {
                **origin,
                "protocol": PROTOCOL,
                "version": __version__,
                "session": session,
                "schema": schema.to_dict(),
                "schema_hash": schema.hash,
                "jpeg": True,
                "max_bytes": max_bytes,
            }
        }


class Session:
    """Session of one client, which answers its messages; to be used by one thread only.

    Args:
        desk: state that all sessions of the server share.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk, self._served = desk, desk.served
        self._state: Any = None
        self._lang: str | None = None
        self._total_ms: float | None = None

    def answers(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[bytes | str]:
        """Yield the replies to messages that arrived together.

        Raises:
            WireError: the data are not a valid message; the connection must be closed.
        """
        for position, message in enumerate(messages):
            header = message.get(HEADER)
            if header is None:
                yield from self._answer_openpi(message)
                continue
            if not isinstance(header, dict):
                raise WireError("the header of a message must be a map")
            kind, later = header.get("kind"), messages[position + 1 :]
            if not isinstance(kind, str):
                raise WireError("the kind of a message must be text")
            if kind in _NEWEST_ONLY and any(_kind(other) == kind for other in later):
                self._desk.statistics.count("dropped")
                yield encode(_reply(header, "dropped"))
            else:
                yield encode(self._answer(header, message))

    def _answer(self, header: Mapping[str, Any], message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to one message of this project's client."""
        kind = header.get("kind")
        try:
            if kind == "observe":
                return self._observe(header, message)
            if kind == "predict":
                return self._predict(header, message)
            if kind == "begin":
                self._begin(_text(message.get("lang"), "an instruction"))
                return _reply(header, "begun")
            if kind == "cut":
                if self._state is not None:
                    self._state = self._served.cut(self._state)
                return _reply(header, "cut")
            if kind == "ping":
                return _reply(header, "pong")
            raise WireError(f"a message of kind {str(kind)[:20]!r} is unknown")
        except Exception as error:
            return {**_reply(header, "error"), "error": self._origin(error)}

    def _begin(self, lang: str | None) -> None:
        self._state = self._served.begin(lang)
        self._lang = lang

    def _begun(self) -> Any:
        """Return the session's memory, which is created at the first observation."""
        if self._state is None:
            self._begin(self._lang)
        return self._state

    def _observe(self, header: Mapping[str, Any], message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to an observation: the action for the next step of the episode."""
        answer = self._step(message.get("obs"), message.get("goal"))
        reply = _reply(header, "action", **_timing(answer))
        return {**reply, "action": answer.reply.action, "chunk": answer.reply.chunk}

    def _step(self, obs: Any, goal: Any) -> TimedReply[Prediction]:
        schema = self._served.schema
        ask_obs = schema.select(_map(obs))
        ask_goal = schema.select(_map(goal or {}), goal=True) if schema.goals else {}
        answer = self._ask(Ask(self._begun(), ask_obs, ask_goal, self._lang))
        self._state = answer.reply.state
        return answer

    def _predict(self, header: Mapping[str, Any], message: Mapping[str, Any]) -> dict[str, Any]:
        """Predict a chunk; the session's memory stays unchanged."""
        schema, history = self._served.schema, message.get("history")
        if not schema.history:
            raise WireError(
                "this policy does not predict chunks from its last observations, which predict_chunk needs: "
                "call the policy at each step instead"
            )
        if not isinstance(history, list) or not 1 <= len(history) <= schema.history:
            raise WireError(f"history must be a list of 1 to {schema.history} observations")
        planned, delay = message.get("planned"), message.get("delay", 0)
        if planned is not None:
            planned = _planned(planned, schema.action_dim)
        if type(delay) is not int or delay < 0:
            raise WireError(f"delay: got {str(delay)[:20]}; wanted a whole number of at least 0")
        answer = self._ask(
            ChunkAsk(
                self._begun(),
                [schema.select(_map(obs)) for obs in history],
                planned,
                delay,
                _text(message.get("guidance"), "guidance"),
            )
        )
        return {**_reply(header, "chunk", **_timing(answer)), "chunk": answer.reply}

    def _ask(self, request: Any) -> TimedReply[Any]:
        answer = self._desk.ask(request)
        self._desk.statistics.count("answered")
        return answer

    def _answer_openpi(self, message: Mapping[str, Any]) -> Iterator[bytes | str]:
        """Answer an observation of openpi's client with a newly planned chunk."""
        began = clock.now()
        try:
            lang = _text(message.get("prompt"), "an instruction")
            if self._state is None or lang != self._lang:
                self._begin(lang)
            self._state = self._served.cut(self._state)
            answer = self._step(dict(message), None)
        except Exception as error:
            yield self._origin(error)
            return
        timing = {"infer_ms": answer.infer_ms, "queued_ms": answer.queued_ms}
        if self._total_ms is not None:
            timing["prev_total_ms"] = self._total_ms
        yield encode({"actions": answer.reply.chunk, "server_timing": timing})
        self._total_ms = 1e3 * (clock.now() - began)

    def _origin(self, error: Exception) -> str:
        """Describe an error for the client in one line without traceback and paths, which go to the server's log."""
        self._desk.statistics.count("errors")
        if isinstance(error, UserError | WireError):
            return one_line(error)
        LOG.error("a prediction failed", exc_info=error)
        return "the server failed to predict; its log contains the reason"


def one_line(error: Exception, length: int = 500) -> str:
    """Format an error as one line of ASCII."""
    return " ".join(str(error).split())[:length].encode("ascii", "replace").decode()


def _kind(message: Mapping[str, Any]) -> Any:
    header = message.get(HEADER)
    return header.get("kind") if isinstance(header, dict) else None


def _reply(header: Mapping[str, Any], kind: str, **more: float) -> dict[str, Any]:
    """Return the header of a reply, with the request's id and time stamp."""
    echoed = {
        name: header[name] for name in ("id", "t") if isinstance(header.get(name), int | float)
    }
    return {HEADER: {"kind": kind, **echoed, **more}}


def _timing(answer: TimedReply[Any]) -> dict[str, float]:
    return {
        "queued_ms": answer.queued_ms,
        "infer_ms": answer.infer_ms,
        "together": answer.together,
    }


def _map(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise WireError("an observation must be a map of arrays")


def _text(value: Any, name: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise WireError(f"{name} must be text")


def _planned(value: Any, action_dim: int) -> NDArray[np.float64]:
    """Return the planned actions (n, A) of a request."""
    fits = isinstance(value, np.ndarray) and value.ndim == 2 and value.shape[1] == action_dim
    if not fits or not len(value) or not np.isfinite(value).all():
        raise WireError(
            f"planned must be finite numbers of shape (n, {action_dim}), with n at least 1"
        )
    planned: NDArray[np.float64] = value.astype(np.float64)
    return planned
