"""Asynchronous inference: the next chunk is predicted in the background while the robot executes the present one.

The control loop calls :class:`AsynchronousPolicy` at every control step; it returns at once with the planned action of
this step, or None where nothing is planned. How chunks are joined is in :mod:`imitate.deploy.chunks`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.chunks import ChunkCounts, ChunkPlayer, DelayEstimate, Join, Ticket
from imitate.errors import NotFiniteError, UserError
from imitate.system import clock

Guidance = Literal["identity", "vjp", "prefix"]
GUIDANCE: Mapping[str, Guidance] = {"rtc": "identity", "rtc-vjp": "vjp", "prefix": "prefix"}
"""Guidance by its name on the command line."""
Vector = NDArray[np.float64]


class ChunkSource(Protocol):
    """Predicts chunks; :class:`imitate.RolloutPolicy` does.

    It may also have ``control_freq`` (Hz), ``obs_keys``, ``max_prefix``, the number of planned actions that a
    prediction can be given (``prefix``), and ``check(ob)``, which raises NotFiniteError where a prediction would.
    """

    history: int
    """Observations that a prediction sees: the newest and those of the control steps before it."""

    def start_episode(self, lang: str | None = None) -> None:
        """Forget the last episode."""

    def predict_chunk(
        self,
        history: Sequence[Mapping[str, Any]],
        planned: Vector | None = None,
        delay: int = 0,
        guidance: Guidance = "identity",
    ) -> Vector:
        """Actions (K, A) from the newest observation's control step on.

        Args:
            history: raw observations of successive control steps, the newest last; fewer than :attr:`history` where
                the episode has just begun.
            planned: (n, A) actions to agree with, of which ``delay`` are executed meanwhile; None: no guidance.
            delay: see ``planned``.
            guidance: ``identity``, ``vjp`` or ``prefix``, see :meth:`imitate.RolloutPolicy.predict_chunk`.
        """


class AsynchronousPolicy:
    """A policy of chunks whose predictions never make the control loop wait. Use as a context manager.

    Args:
        source: predicts the chunks, in a thread of this object.
        rate_hz: control rate.
        execute: actions that are executed at least before the next prediction begins; a prediction that would come too
            late for the plan begins earlier.
        join: how a chunk follows the one before: ``replace``, ``blend`` or ``fade``.
        join_steps: control steps of the join.
        guidance: real-time chunking: predict chunks that agree with what is planned, guided by the identity or the true
            vector-Jacobian product, or given the actions that are executed meanwhile (``prefix``, for policies that are
            trained so); for flow and diffusion policies, with the join ``replace``. None: no guidance.

    Raises:
        UserError: ``guidance`` is ``prefix``, and the policy is not trained so.
    """

    def __init__(
        self,
        source: ChunkSource,
        rate_hz: float,
        *,
        execute: int = 1,
        join: Join = "blend",
        join_steps: int = 4,
        guidance: Guidance | None = None,
    ) -> None:
        if guidance == "prefix" and not getattr(source, "max_prefix", 0):
            raise UserError(
                "the policy is not trained to be given planned actions (prefix): train a flow_policy or "
                "diffusion_policy with algo.prefix.max_delay, or take real-time chunking by guidance (rtc)"
            )
        self._guidance = guidance
        self._source, self._execute = source, execute
        self._player = ChunkPlayer(join, join_steps)
        self.delay = DelayEstimate(1.0 / rate_hz)
        self.control_freq: float | None = getattr(source, "control_freq", None)
        self.number_names = getattr(source, "number_names", {})
        self.obs_keys: tuple[str, ...] = tuple(getattr(source, "obs_keys", ()))
        self._check: Callable[[Mapping[str, Any]], None] = getattr(source, "check", _accept)
        self._history: deque[Mapping[str, Any]] = deque(maxlen=max(source.history, 1))
        self._since_request = 0
        self._lost: ConnectionError | None = None
        self._changed = threading.Condition()
        self._job: tuple[Ticket, dict[str, Any], int] | None = None
        self._busy = self._closed = False
        self._refusal: UserError | None = None
        self._epoch = 0
        self.finished = 0
        """Predictions that have ended, also those that were thrown away."""
        self._done: tuple[Ticket, Vector | BaseException, float, int] | None = None
        self._thread = threading.Thread(target=self._work, name="prediction", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> ChunkCounts:
        """Number of chunks by their fate."""
        return self._player.counts

    def start_episode(self, lang: str | None = None) -> None:
        """Forget the past; a prediction that was requested is waited for and thrown away.

        So a call followed by this makes the first prediction, the slowest, before the robot moves.

        Raises:
            UserError: the policy refused to predict, such as one that cannot be guided.
        """
        with self._changed:
            self._epoch += 1
            clock.wait_for(
                self._changed, lambda: self._closed or not (self._busy or self._job is not None)
            )
            self._done = None
            refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal
        self._lost = None
        self._player.clear()
        self._history.clear()
        self._source.start_episode(lang)

    def cut_plan(self) -> None:
        """Forget what is planned, as when a person has moved the robot; what was seen stays known."""
        with self._changed:
            self._epoch += 1
            self._job = self._done = None
        self._player.clear()

    def __call__(self, ob: Mapping[str, Any]) -> Vector | None:
        """The action (A,) of this control step; None where none is planned.

        A lost server is asked again in the background while what is planned is executed.

        Raises:
            NotFiniteError: the observation has NaN or infinity; it is not remembered.
            ConnectionError: the last prediction was lost with its server, and nothing is planned any more.
            Exception: another one that a prediction in the background raised.
        """
        self._check(ob)
        self._history.append({key: np.array(value) for key, value in ob.items()})
        self._take()
        if self._is_due():
            self._request()
        action = self._player.next()
        if action is not None:
            self._since_request += 1
        elif self._lost is not None:
            raise ConnectionError(str(self._lost)) from self._lost
        return action

    def _is_due(self) -> bool:
        with self._changed:
            if self._busy or self._job is not None or self._done is not None:
                return False
        if self._player.planned == 0 or self._lost is not None:
            return True
        return self._since_request >= self._execute or self._player.planned <= self.delay.steps + 1

    def _request(self) -> None:
        self._since_request = 0
        ticket = self._player.request()
        with self._changed:
            self._job = (ticket, self._question(), self._epoch)
            self._changed.notify_all()

    def _question(self) -> dict[str, Any]:
        """The arguments of the next prediction."""
        planned = None if self._guidance is None else self._player.remaining()
        if planned is None:
            return {"history": list(self._history)}
        return {
            "history": list(self._history),
            "planned": planned,
            "delay": self.delay.steps,
            "guidance": self._guidance,
        }

    def _take(self) -> None:
        """Take the chunk that has come, if any."""
        with self._changed:
            done, self._done = self._done, None
            self._refusal = None
        if done is None:
            return
        ticket, outcome, seconds, epoch = done
        if epoch != self._epoch:
            return
        self._lost = outcome if isinstance(outcome, ConnectionError) else None
        if self._lost is not None:
            return
        if isinstance(outcome, BaseException):
            raise outcome
        self.delay.add(seconds)
        self._player.accept(outcome, ticket)

    def _work(self) -> None:
        while True:
            with self._changed:
                clock.wait_for(self._changed, lambda: self._job is not None or self._closed)
                if self._closed or self._job is None:
                    return
                (ticket, question, epoch), self._job = self._job, None
                self._busy = True
            began = clock.now()
            outcome: Vector | BaseException
            try:
                outcome = self._predict(question)
            except BaseException as error:
                outcome = error
            with self._changed:
                self._busy = False
                if isinstance(outcome, UserError) and not isinstance(outcome, NotFiniteError):
                    self._refusal = outcome
                self.finished += 1
                if epoch == self._epoch:
                    self._done = (ticket, outcome, clock.now() - began, epoch)
                self._changed.notify_all()

    def _predict(self, question: Mapping[str, Any]) -> Vector:
        """Predict a chunk; the first time a guided one, too, so that a policy refuses before the robot moves."""
        chunk = np.asarray(self._source.predict_chunk(**question), dtype=np.float64)
        if self._guidance is not None and not self.finished:
            self._source.predict_chunk(question["history"], chunk, 0, self._guidance)
        return chunk

    def close(self) -> None:
        """End the thread, after the prediction that runs."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(10)

    def __enter__(self) -> AsynchronousPolicy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _accept(ob: Mapping[str, Any]) -> None:
    """The check of a source that has none."""
