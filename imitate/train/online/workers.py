"""Collection of environment steps by several workers, each of which has a copy of the policy and its own environments.

If ``max_staleness`` is None, every request carries the newest weights and a collection waits for all workers. Otherwise
each worker continues as soon as its last steps were received, and learning waits if the weights of an open request
would become too old. A worker that dies, hangs or loses its machine is replaced: only the steps of its request and its
running episodes are lost. The others continue without waiting for the replacement.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from imitate.algo.base.algo import Algo
from imitate.crew import Lost
from imitate.crew.backend import Backend
from imitate.crew.local import LocalBackend
from imitate.envs.env import Env
from imitate.errors import EnvError
from imitate.train.online.seats import (
    PATIENCE_S,
    Blueprint,
    Publisher,
    Seat,
    StalenessBound,
    StepRequest,
    acting_weights,
    arrays,
    collector_limits,
    load_acting_weights,
    merged_parts,
    tensors,
)
from imitate.train.online.steps import Collected

__all__ = [
    "PATIENCE_S",
    "Blueprint",
    "ProcessCollector",
    "acting_weights",
    "load_acting_weights",
    "merged_parts",
]

START_S = 300.0
"""Seconds after which a worker that is not ready counts as hung."""
MAX_REPLACEMENTS = 10
"""Largest number of consecutive replacements of a worker without any steps between them."""


class ProcessCollector:
    """Collects steps with one worker per blueprint.

    Args:
        blueprints: blueprints of the workers.
        algo: algorithm whose weights act.
        step_timeout_s: a worker that takes longer for a step counts as hung.
        start_timeout_s: a worker that takes longer to start counts as hung; the first collection waits this long for
            all.
        max_staleness: largest number of updates by which weights may lag, or None to alternate collecting and learning.
        push_every_s: shortest time between two versions of the weights that workers get.
        place: back end opened for the workers and closed with the collector, or None for processes on this machine.

    Attributes:
        version: number of updates so far, to be set by the learner.
    """

    def __init__(
        self,
        blueprints: Sequence[Blueprint],
        algo: Algo,
        *,
        step_timeout_s: float,
        start_timeout_s: float = START_S,
        max_staleness: int | None = None,
        push_every_s: float = 0.0,
        place: AbstractContextManager[Backend[Any]] | None = None,
    ) -> None:
        self.algo, self.version, self.progress = algo, 0, 0.0
        self._limits = collector_limits(step_timeout_s, start_timeout_s)
        self._bound, self._in_step = StalenessBound(max_staleness), max_staleness is None
        self._publisher = Publisher(algo, every_s=push_every_s)
        with ExitStack() as opened:
            place = place or nullcontext(LocalBackend("imitate-collector"))
            self._backend: Backend[Any] = opened.enter_context(place)
            self._seats = [Seat(blueprint, self._backend) for blueprint in blueprints]
            self._opened = opened.pop_all()
        self._all_by_s = time.monotonic() + start_timeout_s
        self._parts: list[Collected] = []
        self._lost: list[int] = []
        self._messages: list[str] = []

    @property
    def staleness(self) -> int:
        """Largest number of updates by which the weights of received steps lagged."""
        return self._bound.seen

    def collect(self, num_steps: int, *, random: bool = False) -> Collected:
        """Return ``num_steps`` steps of each environment, or of only some of them if updates do not wait."""
        with self._bound.waiting(self.version):
            while not self._parts:
                self._await_workers()
                self._send(num_steps, random)
                self._await_steps()
        parts, lost, messages = self._parts, self._lost, self._messages
        self._parts, self._lost, self._messages = [], [], []
        advice = self._bound.advice()
        if not self._in_step:
            self._send(num_steps, random)
        return merged_parts(parts, lost, [*messages, *([advice] if advice else [])])

    def begin_stage(self, make: Callable[[], Env], kwargs: Mapping[str, Any]) -> bool:
        """Return false: workers are started anew."""
        return False

    def updates_allowed(self) -> int | None:
        """Return the number of updates until weights in use become too old, or None if there is no limit."""
        newest = self.version if self._publisher.version is None else self._publisher.version
        out = [seat.request.weights.version for seat in self._seats if seat.request is not None]
        return self._bound.allowed(self.version, min(out, default=newest))

    def metrics(self) -> dict[str, float]:
        """Return ``Metrics/Staleness``: the largest number of updates by which weights lagged."""
        return {"Metrics/Staleness": float(self.staleness)}

    def state_dict(self) -> dict[str, Any]:
        """Return the episode counters and the workers' random states, as last received."""
        states = [seat.state for seat in self._seats]
        return {"workers": [None if state is None else tensors(state) for state in states]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`; running episodes are dropped."""
        for seat, saved in zip(self._seats, state["workers"], strict=True):
            seat.restore(None if saved is None else arrays(saved))

    def close(self) -> None:
        """End the workers and close their back end."""
        with self._opened:
            for seat in self._seats:
                seat.member.dismiss()
            for seat in self._seats:
                seat.stop()

    def _await_workers(self) -> None:
        """Wait for a ready worker, or for all of them at the start if learning waits for collecting."""
        while True:
            all_wanted = self._in_step and time.monotonic() < self._all_by_s
            missing = [seat for seat in self._seats if not seat.is_ready and seat.is_first]
            if any(seat.is_ready for seat in self._seats) and not (all_wanted and missing):
                return
            self._receive()

    def _send(self, num_steps: int, random: bool) -> None:
        """Request steps from all idle workers, unless learning waits; the request is packed once."""
        idle = [seat for seat in self._seats if seat.is_idle]
        in_use = [seat.request.weights for seat in self._seats if seat.request is not None]
        out = [weights.version for weights in in_use]
        if not idle or self._bound.is_used_up(self.version, out):
            return
        weights = self._publisher.newest(self.version, in_use)
        request = StepRequest(num_steps, random, self.progress, weights)
        packed = self._backend.pack(request)
        for seat in idle:
            seat.send(request, packed)

    def _await_steps(self) -> None:
        """Wait for steps of all workers with a request, or for any one if learning continues meanwhile."""
        while any(seat.request is not None for seat in self._seats):
            self._receive()
            if not self._in_step and (self._lost or any(seat.is_idle for seat in self._seats)):
                return

    def _receive(self) -> None:
        """Receive the workers' answers, and replace lost workers."""
        waiting = {seat.member: seat for seat in self._seats if not seat.is_idle}
        for member in self._backend.heard(list(waiting), self._limits):
            seat = waiting[member]
            received = seat.receive()
            if isinstance(received, Lost):
                self._replace(seat, received)
            elif received is not None:
                self._bound.record(self.version, received.version)
                self._parts.append(received)
                for other in self._seats:
                    other.losses = 0

    def _replace(self, seat: Seat, loss: Lost) -> None:
        """Replace a worker that died or hangs."""
        lanes = seat.blueprint.lanes.tolist()
        words = f"environments {lanes}: {loss.reason}"
        if seat.losses + 1 >= MAX_REPLACEMENTS:
            raise EnvError(
                f"{words}; this worker failed {MAX_REPLACEMENTS} times in a row: run imitate check-env, "
                "or collect with train.online.num_workers 0"
            )
        self._lost += lanes
        self._messages.append(
            f"{words}; its episodes are discarded, and another worker replaces it"
        )
        seat.start_anew()
