"""Asynchronous inference: the next chunk is predicted in the background while the robot executes the current one.

The control loop calls :class:`AsynchronousPolicy` at every control step. The call returns at once, with the planned
action of this step, or None if nothing is planned. :mod:`imitate.policy.chunks` joins the chunks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from imitate.errors import NotFiniteError, UserError
from imitate.policy.chunks import ChunkCounts, ChunkPlayer, DelayEstimate, Join, Ticket
from imitate.system import clock

Guidance = Literal["identity", "vjp", "prefix"]
GUIDANCE: Mapping[str, Guidance] = {"rtc": "identity", "rtc-vjp": "vjp", "prefix": "prefix"}
"""Guidance of real-time chunking, by its name on the command line."""
Vector = NDArray[np.float64]


class ChunkSource(Protocol):
    """Interface of a policy that predicts chunks, such as :class:`imitate.RolloutPolicy`.

    Optional attributes are ``control_freq`` (Hz), ``obs_keys``, ``max_prefix`` (largest number of planned actions that
    a prediction with the guidance ``prefix`` accepts), and the method ``check(ob)``, which raises NotFiniteError for an
    observation with NaN or infinity.
    """

    history: int
    """Number of successive observations that a prediction uses, including the newest one."""

    def start_episode(self, lang: str | None = None) -> None:
        """Reset the memory for a new episode."""

    def predict_chunk(
        self,
        history: Sequence[Mapping[str, Any]],
        planned: Vector | None = None,
        delay: int = 0,
        guidance: Guidance = "identity",
    ) -> Vector:
        """Predict actions (K, A) from the newest observation's control step on.

        Args:
            history: raw observations of successive control steps, the newest last; fewer than :attr:`history` at the
                beginning of an episode.
            planned: (n, A) planned actions that the prediction must agree with, or None for no guidance.
            delay: number of planned actions that will be executed before the prediction is available.
            guidance: ``identity``, ``vjp`` or ``prefix``, see :meth:`imitate.RolloutPolicy.predict_chunk`.
        """


class AsynchronousPolicy:
    """Executes predicted chunks without making the control loop wait for a prediction; a context manager.

    Args:
        source: policy that predicts the chunks, called in a background thread.
        rate_hz: control rate in Hz.
        execute: number of actions to execute before the next prediction begins; the prediction begins earlier if it
            would otherwise arrive too late.
        join: how a new chunk follows the previous one: ``replace``, ``blend`` or ``fade``, see
            :mod:`imitate.policy.chunks`.
        join_steps: number of control steps over which ``blend`` and ``fade`` reach the new chunk.
        guidance: method of real-time chunking, which makes chunks agree with the planned actions: ``identity`` or
            ``vjp`` (guided with this Jacobian), or ``prefix`` (conditioned on the actions that are executed during the
            prediction, for policies trained for it). Only for flow and diffusion policies, with the join ``replace``.
            None for no guidance.

    Raises:
        UserError: ``guidance`` is ``prefix``, and the policy is not trained for it.
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
                "the policy is not trained for planned actions as input (prefix): train a "
                "flow_policy or diffusion_policy with algo.prefix.max_delay, or use guidance (rtc), which needs no "
                "training"
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
        """Number of finished predictions, including discarded ones."""
        self._done: tuple[Ticket, Vector | BaseException, float, int] | None = None
        self._thread = threading.Thread(target=self._work, name="prediction", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> ChunkCounts:
        """Number of chunks by outcome."""
        return self._player.counts

    def start_episode(self, lang: str | None = None) -> None:
        """Begin a new episode; wait for a running prediction and discard it.

        One call of the policy followed by this method therefore makes the first, slowest prediction before the robot
        moves.

        Raises:
            UserError: the policy cannot predict, for example because it cannot be guided.
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
        """Drop the planned actions, for example after a person moved the robot; keep past observations."""
        with self._changed:
            self._epoch += 1
            self._job = self._done = None
        self._player.clear()

    def __call__(self, ob: Mapping[str, Any]) -> Vector | None:
        """Return the action (A,) of this control step, or None if none is planned.

        If the connection to the server is lost, the request is repeated in the background while planned actions are
        executed.

        Raises:
            NotFiniteError: the observation has NaN or infinity; it is not stored.
            ConnectionError: the connection to the server was lost during the last prediction, and no planned actions
                are left.
            Exception: any other error of a prediction in the background.
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
        """Return the arguments of ``predict_chunk`` for the next prediction."""
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
        """Add the chunk of a finished prediction to the plan, or raise the error of the prediction."""
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
        """Predict a chunk; at the first call also with guidance, so that errors appear before the robot moves."""
        chunk = np.asarray(self._source.predict_chunk(**question), dtype=np.float64)
        if self._guidance is not None and not self.finished:
            self._source.predict_chunk(question["history"], chunk, 0, self._guidance)
        return chunk

    def close(self) -> None:
        """End the background thread after the running prediction."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(10)

    def __enter__(self) -> AsynchronousPolicy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _accept(ob: Mapping[str, Any]) -> None:
    """Accept any observation, for a policy without a method ``check``."""
