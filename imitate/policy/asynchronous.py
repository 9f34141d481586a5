"""Asynchronous inference: the next chunk is predicted in the background while the robot executes the current one.

The control loop calls :class:`AsynchronousPolicy` at every control step. The call returns at once, with the planned
action of this step, or None if nothing is planned. :class:`ChunkPlayer` joins the chunks.

A prediction uses the observation of one control step and arrives some steps later. The first action of the predicted
chunk belongs to the step of the observation, so the chunk loses as many actions as the robot has executed since then
(fewer than the elapsed steps if the robot held still without a plan). The rest is joined to the previously planned
actions in one of these ways:

    replace   the new actions from now on
    blend     (1 - w_k) old_k + w_k new_k over the steps that both plan, w rising from 0 to 1
    fade      new_k + (1 - w_k) (old_0 - new_0): the jump between both is spread over some steps

This module needs only numpy; objects that join chunks may be used by one thread at a time.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate.errors import NotFiniteError, UserError, nearest
from imitate.system import clock

Vector = NDArray[np.float64]
Join = Literal["replace", "blend", "fade"]
Guidance = Literal["identity", "vjp", "prefix"]
GUIDANCE: Mapping[str, Guidance] = {"rtc": "identity", "rtc-vjp": "vjp", "prefix": "prefix"}
"""Guidance of real-time chunking, by its name on the command line."""


@dataclass
class ChunkCounts:
    """Number of predicted chunks by outcome, and of control steps without a plan.

    Attributes:
        accepted: number of chunks with at least one action left to execute.
        outdated: number of chunks that arrived after all their control steps.
        older: number of chunks that arrived after a chunk from a later observation.
        empty: number of control steps without a planned action.
    """

    accepted: int = 0
    outdated: int = 0
    older: int = 0
    empty: int = 0


@dataclass(frozen=True)
class Ticket:
    """Time of an observation: number of the request, and number of actions executed before the observation."""

    number: int
    executed: int


class ChunkPlayer:
    """Joins chunks to one stream of actions.

    Args:
        join: how a chunk follows the previous one: ``replace``, ``blend`` or ``fade``, see the module's docstring.
        steps: control steps over which ``blend`` and ``fade`` reach the new chunk, at least 1.

    Raises:
        UserError: the join is unknown or ``steps`` is below 1.
    """

    def __init__(self, join: Join = "blend", steps: int = 4) -> None:
        if join not in get_args(Join):
            raise UserError(f"unknown join of chunks '{join}'; {nearest(join, get_args(Join))}")
        if steps < 1:
            raise UserError(
                f"the number of control steps for joining chunks is {steps}; it must be at least 1"
            )
        self.counts = ChunkCounts()
        self._join, self._steps = join, steps
        self.clear()

    def clear(self) -> None:
        """Drop the plan, at the beginning of an episode or after a person moved the robot.

        A chunk that was requested earlier is discarded when it arrives.
        """
        self._plan: Vector | None = None
        self._last: Vector | None = None
        self._executed = 0
        self._requests = getattr(self, "_requests", 0)
        self._newest = self._requests

    def request(self) -> Ticket:
        """Return the time of the current observation, from which a chunk will be predicted, for :meth:`accept`."""
        self._requests += 1
        return Ticket(self._requests, self._executed)

    @property
    def planned(self) -> int:
        """Number of planned actions from the current step on."""
        return 0 if self._plan is None else len(self._plan)

    def remaining(self) -> Vector | None:
        """Copy (n, A) of the planned actions from the current step on, or None if nothing is planned."""
        return None if self._plan is None or not len(self._plan) else self._plan.copy()

    def accept(self, chunk: ArrayLike, ticket: Ticket) -> bool:
        """Add a predicted chunk to the plan.

        Args:
            chunk: (K, A) actions, the first one for the control step of the observation.
            ticket: result of :meth:`request` at the time of the observation.

        Returns:
            False if the chunk was not used, because all its actions are outdated or a newer chunk has arrived.

        Raises:
            UserError: the chunk's shape is not (K, A), or an action is not finite.
        """
        actions = np.array(chunk, dtype=np.float64)
        if actions.ndim != 2 or not len(actions):
            raise UserError(f"a chunk has shape {actions.shape}; wanted (K, A) with K at least 1")
        if not np.isfinite(actions).all():
            raise UserError("a chunk contains NaN or inf; wanted finite actions")
        if ticket.number <= self._newest:
            self.counts.older += 1
            return False
        fresh = actions[self._executed - ticket.executed :]
        if not len(fresh):
            self.counts.outdated += 1
            return False
        self._newest = ticket.number
        self._plan = self._joined(fresh)
        self.counts.accepted += 1
        return True

    def next(self) -> Vector | None:
        """Return the action (A,) of this control step; None if nothing is planned, and the robot must hold still."""
        if self._plan is None or not len(self._plan):
            self.counts.empty += 1
            return None
        self._last, self._plan = self._plan[0], self._plan[1:]
        self._executed += 1
        return self._last.copy()

    def _joined(self, fresh: Vector) -> Vector:
        """Return the new actions, joined to those planned for the same steps."""
        old = self._plan if self._plan is not None else fresh[:0]
        if self._join == "replace":
            return fresh
        if self._join == "blend":
            count = min(len(old), len(fresh), self._steps)
            weight = _rising(count)
            fresh[:count] = (1.0 - weight) * old[:count] + weight * fresh[:count]
            return fresh
        present = old[0] if len(old) else self._last
        if present is not None:
            count = min(len(fresh), self._steps)
            fresh[:count] += (1.0 - _rising(count)) * (present - fresh[0])
        return fresh


def _rising(count: int) -> Vector:
    """Return (count, 1) weights that rise in equal steps from 1 / (count + 1) to count / (count + 1)."""
    return (np.arange(1.0, count + 1.0) / (count + 1.0))[:, None]


class DelayEstimate:
    """Expected delay of a prediction, in control steps, from the latest delays.

    Args:
        period_s: duration of a control step in seconds.
        window: number of latest predictions used, so that one slow prediction has no lasting effect.
        warm_up: number of first predictions that are ignored, because they are slower.
        quantile: quantile of the delays in the window that is expected, in (0, 1].
    """

    def __init__(
        self, period_s: float, window: int = 20, warm_up: int = 1, quantile: float = 0.95
    ) -> None:
        self._period, self._quantile = period_s, quantile
        self._ignore = warm_up
        self._seen: deque[float] = deque(maxlen=window)

    def add(self, seconds: float) -> None:
        """Record the time from an observation to the arrival of its chunk."""
        if self._ignore:
            self._ignore -= 1
        else:
            self._seen.append(seconds)

    @property
    def steps(self) -> int:
        """Expected delay of the next prediction in control steps; 0 before any measurement."""
        if not self._seen:
            return 0
        ordered = sorted(self._seen)
        place = math.ceil(self._quantile * len(ordered)) - 1
        return math.ceil(ordered[place] / self._period - 1e-9)


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
            the module's docstring.
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
