"""Collector in the training process for environment workers whose actions come from policy workers.

A group of environments belongs to one environment worker at a time; a replacement takes over the group. Policy workers
that die or hang are replaced too, and get the newest weights.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from imitate.algo.base.algo import Algo
from imitate.crew import Limits, Lost
from imitate.crew.backend import Answer, Backend, Member, Unprepared
from imitate.crew.local import LocalBackend
from imitate.envs.env import Env
from imitate.errors import EnvError, WorkerError
from imitate.train.online.central.env_worker import EnvPlan, EnvWork, Stalled, Steps, StepsWanted
from imitate.train.online.central.policy_worker import PolicyPlan, PolicyWork, Status, Weights
from imitate.train.online.seats import (
    PATIENCE_S,
    Blueprint,
    Publisher,
    StalenessBound,
    collector_limits,
    merged_parts,
)
from imitate.train.online.steps import Collected
from imitate.train.online.workers import MAX_REPLACEMENTS, START_S


class EnvSeat:
    """The environments of a plan, the current worker, and its current request.

    Attributes:
        request: current request, or None if the worker is idle.
        version: version of the policy worker's weights when the request was sent.
        is_stalled: true if the environment worker waits for a policy worker.
    """

    def __init__(self, plan: EnvPlan, backend: Backend[Any]) -> None:
        self.plan, self._backend = plan, backend
        self.state: dict[str, Any] | None = None
        self._restores = False
        self._start()

    def _start(self) -> None:
        self.member: Member = self._backend.start(partial(EnvWork, self.plan))
        self.request: StepsWanted | None = None
        self.version, self.is_stalled, self._stalls = 0, False, 0
        self._policy: PolicyWorker | None = None

    @property
    def lanes(self) -> list[int]:
        """Lane numbers of the worker's environments."""
        numbers: list[int] = self.plan.lanes.reshape(-1).tolist()
        return numbers

    def send(self, request: StepsWanted, policy: PolicyWorker) -> None:
        """Ask for steps with the actions of a policy worker."""
        if self._restores:
            self._restores, request = False, replace(request, state=self.state)
        self.request, self.version = request, policy.has.version
        self._give(request, policy)

    def resume(self, policy: PolicyWorker) -> None:
        """Continue the environment worker's request with the actions of a policy worker."""
        if self.request is not None:
            self.is_stalled = False
            self._give(replace(self.request, resumes=True), policy)

    def _give(self, request: StepsWanted, policy: PolicyWorker) -> None:
        assert policy.status is not None
        self._policy = policy
        self.member.give(self._backend.pack(replace(request, address=policy.status.address)))

    def receive(self) -> Steps | Lost | None:
        """Return the received steps, or the loss of the worker, or None if it waits for a policy worker.

        Raises:
            UserError: the worker could not be prepared, or its environments fail each time.
        """
        answer = self.member.answer()
        if isinstance(answer, Unprepared):
            raise answer.error
        if isinstance(answer, Lost) and answer.died:
            return answer
        if not isinstance(answer, Answer):
            reason = f"environments {self.lanes} failed: {getattr(answer, 'reason', answer)}"
            raise getattr(answer, "error", None) or EnvError(reason)
        if isinstance(answer.value, Stalled):
            self._stall(answer.value)
            return None
        self.request, self._stalls = None, 0
        steps: Steps = answer.value
        self.state = steps.state
        return steps

    def _stall(self, stalled: Stalled) -> None:
        self.is_stalled, self._stalls = True, self._stalls + 1
        if self._policy is not None:
            self._policy.is_suspect = True
        if self._stalls >= MAX_REPLACEMENTS:
            raise EnvError(
                f"environments {self.lanes} get no actions: {stalled.reason}; "
                f"{MAX_REPLACEMENTS} times in a row"
            )

    def start_anew(self) -> None:
        """Start another worker, whose episodes have different seeds than the lost ones."""
        self.member.stop()
        self._start()
        if self.state is not None:
            begun = [number + 1_000_000 for number in self.state["begun"]]
            self.restore({**self.state, "begun": begun})

    def restore(self, state: dict[str, Any] | None) -> None:
        """Let the worker resume from a state at its next request."""
        self.state, self._restores = state, state is not None


class CentralCollector:
    """Collects steps with one environment worker per blueprint; all of them ask policy workers for actions.

    If ``max_staleness`` is None, a collection waits for all environment workers; otherwise each continues as soon as
    its last steps were received. A policy worker that dies or hangs is replaced while its environments wait, without
    loss. An environment worker is replaced as by :class:`imitate.train.online.workers.ProcessCollector`.

    Args:
        blueprints: blueprints of the environment workers.
        algo: algorithm whose weights act.
        policy_workers: number of policy workers.
        ring: number of groups into which a worker's environments are divided.
        num_agents: number of agents per environment, each of which has a lane.
        step_timeout_s: a process that takes longer for a step or a prediction counts as hung.
        max_staleness: largest number of updates by which weights may lag, or None to alternate collecting and learning.
        push_every_s: shortest time between two versions of the weights that policy workers get.
        place: back end opened for the workers and closed with the collector, or None for processes on this machine.

    Attributes:
        version: number of updates so far, to be set by the learner.
    """

    def __init__(
        self,
        blueprints: Sequence[Blueprint],
        algo: Algo,
        *,
        policy_workers: int = 1,
        ring: int = 1,
        num_agents: int = 1,
        step_timeout_s: float,
        max_staleness: int | None = None,
        push_every_s: float = 0.0,
        place: AbstractContextManager[Backend[Any]] | None = None,
    ) -> None:
        self.algo, self.version, self.progress = algo, 0, 0.0
        self._limits = collector_limits(step_timeout_s, START_S)
        self._bound, self._in_step = StalenessBound(max_staleness), max_staleness is None
        self.publisher = Publisher(algo, every_s=push_every_s)
        self._messages: list[str] = []
        self._replaced = 0
        self._all_by_s = time.monotonic() + START_S
        # All workers have one seed: random draws depend on the number of the environment, not on its worker.
        token, seed = secrets.token_bytes(32), blueprints[0].seed
        with ExitStack() as opened:
            place = place or nullcontext(LocalBackend("imitate-collector"))
            self._backend: Backend[Any] = opened.enter_context(place)
            plan = PolicyPlan(blueprints[0].algo, str(algo.device), seed, token, self._backend.host)
            self._policies = PolicyWorkers(
                plan, policy_workers, self._backend, self._limits, self._lose_policy
            )
            self._seats = [
                EnvSeat(
                    EnvPlan(
                        make=blueprint.make,
                        lanes=blueprint.lanes.reshape(-1, num_agents),
                        ring=ring,
                        group=blueprint.group,
                        obs_keys=tuple(algo.obs_shapes),
                        low=blueprint.low,
                        high=blueprint.high,
                        num_choices=blueprint.num_choices,
                        mask_key=algo.action_mask.key,
                        seed=seed,
                        timeout_s=step_timeout_s,
                        token=token,
                    ),
                    self._backend,
                )
                for blueprint in blueprints
            ]
            self._opened = opened.pop_all()

    @property
    def staleness(self) -> int:
        """Largest number of updates by which the weights of received steps lagged."""
        return self._bound.seen

    def collect(self, num_steps: int, *, random: bool = False) -> Collected:
        """Return ``num_steps`` steps of each environment, or of only some of them if updates do not wait."""
        parts: list[Collected] = []
        lost: list[int] = []
        with self._bound.waiting(self.version):
            while not parts:
                self._send(num_steps, random)
                more, more_lost = self._receive()
                parts, lost = more, lost + more_lost
        messages, self._messages = self._messages, []
        advice = self._bound.advice()
        if not self._in_step:
            self._send(num_steps, random)
        return merged_parts(parts, lost, [*messages, *([advice] if advice else [])])

    def begin_stage(self, make: Callable[[], Env], kwargs: Mapping[str, Any]) -> bool:
        """Return false: workers are started anew."""
        return False

    def updates_allowed(self) -> int | None:
        """Return the number of updates until weights in use become too old, or None if there is no limit."""
        newest = self.version if self.publisher.version is None else self.publisher.version
        return self._bound.allowed(self.version, min(self._versions_out(), default=newest))

    def metrics(self) -> dict[str, float]:
        """Return :attr:`staleness`, and the mean number of observations per prediction."""
        return {
            "Metrics/Staleness": float(self.staleness),
            "Metrics/ActingBatch": self._policies.batch_size(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the episode counters, as last received."""
        return {"workers": [seat.state for seat in self._seats]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`; running episodes are dropped."""
        for seat, saved in zip(self._seats, state["workers"], strict=True):
            seat.restore(saved)

    def close(self) -> None:
        """End the workers and close their back end."""
        with self._opened:
            idle = [seat.member for seat in self._seats if seat.request is None]
            for member in idle:
                member.dismiss()
            for seat in self._seats:
                seat.member.stop(patience_s=PATIENCE_S if seat.member in idle else 0.0)
            self._policies.close()

    def _versions_out(self) -> list[int]:
        """Return the versions of the weights of steps in progress.

        A worker that has not started takes no steps yet; later it uses its policy worker's newest weights.
        """
        busy = [seat for seat in self._seats if seat.request is not None]
        return [seat.version for seat in busy if not seat.member.waits()]

    def _send(self, num_steps: int, random: bool) -> None:
        """Ask all idle environment workers for steps, unless learning waits."""
        idle = [seat for seat in self._seats if seat.request is None]
        if not idle or self._bound.is_used_up(self.version, self._versions_out()):
            return
        weights = self.publisher.newest(self.version, ())
        self._policies.publish(Weights(self.progress, weights))
        unasked = weights.version if random and not self.algo.random_needs_act else None
        for number, seat in enumerate(self._seats):
            policy = self._policies.of(number)
            if seat in idle and policy is not None:
                seat.send(StepsWanted(num_steps, random, unasked=unasked), policy)

    def _receive(self) -> tuple[list[Collected], list[int]]:
        """Return received steps and lost lanes: of all started workers if learning waits, otherwise of at least one."""
        parts: list[Collected] = []
        lost: list[int] = []
        waiting = [seat for seat in self._seats if seat.request is not None]
        while waiting and (self._in_step or not (parts or lost)):
            self._policies.tend()
            seats = {seat.member: seat for seat in waiting if not seat.is_stalled}
            busy = self._policies.busy()
            for member in self._backend.heard([*seats, *busy], self._limits):
                if member in busy:
                    self._policies.hear(busy[member])
                    continue
                came = seats[member].receive()
                if isinstance(came, Lost):
                    lost += self._lose(seats[member], came)
                elif isinstance(came, Steps):
                    parts += self._counted(came.parts)
            self._resume()
            waiting = [seat for seat in waiting if seat.request is not None]
            if parts and time.monotonic() > self._all_by_s:
                waiting = [seat for seat in waiting if not seat.member.waits()]
        return parts, lost

    def _resume(self) -> None:
        """Let environment workers that lost their policy worker continue with a ready one."""
        for number, seat in enumerate(self._seats):
            policy = self._policies.of(number) if seat.is_stalled else None
            if policy is not None:
                seat.resume(policy)

    def _counted(self, parts: Sequence[Collected]) -> Sequence[Collected]:
        self._replaced = 0
        for part in parts:
            self._bound.record(self.version, part.version)
        return parts

    def _lose(self, seat: EnvSeat, loss: Lost) -> list[int]:
        """Replace a worker that died or hangs; return the numbers of its environments."""
        lanes: list[int] = seat.lanes
        words = f"environments {lanes}: {loss.reason}"
        self._note_loss(words, "its episodes are left out, another one takes its place")
        seat.start_anew()
        return lanes

    def _lose_policy(self, words: str) -> None:
        self._note_loss(words, "another one takes its place, environments wait for it")

    def _note_loss(self, words: str, consequence: str) -> None:
        self._messages.append(f"{words}; {consequence}")
        self._replaced += 1
        if self._replaced >= MAX_REPLACEMENTS:
            raise EnvError(
                f"{words}; {MAX_REPLACEMENTS} in a row: run imitate check-env, or collect with "
                "train.online.num_workers 0"
            )


LOOK_S = 1.0
"""Seconds between two checks that a policy worker still answers."""


@dataclass(frozen=True)
class PackedWeights:
    """Weights to send to policy workers.

    Attributes:
        number: number of their publication.
        version: number of updates of the weights.
        packed: the weights, packed by the back end.
    """

    number: int
    version: int
    packed: Any


class PolicyWorkers:
    """Policy workers; each is replaced if it dies or hangs.

    Args:
        plan: plan of each worker.
        number: number of workers.
        backend: back end on which they run.
        limits: time limits after which a worker counts as hung.
        on_loss: called with the reason when a worker is replaced.
    """

    def __init__(
        self,
        plan: PolicyPlan,
        number: int,
        backend: Backend[Any],
        limits: Limits,
        on_loss: Callable[[str], None],
    ) -> None:
        self._backend, self._limits, self._on_loss = backend, limits, on_loss
        self._workers = [PolicyWorker(plan, backend) for _ in range(number)]
        self._newest, self._look = PackedWeights(0, 0, None), backend.pack(None)

    def publish(self, weights: Weights) -> None:
        """Send weights, pickled once, to all workers, and wait until the running ones act with them.

        A starting worker also gets them; the call waits for it only if there is no other worker.
        """
        number = self._newest.number + 1
        self._newest = PackedWeights(number, weights.published.version, self._backend.pack(weights))
        while not self._is_published():
            self.tend()
            busy = self.busy()
            for member in self._backend.heard(list(busy), self._limits):
                self.hear(busy[member])

    def tend(self) -> None:
        """Send each idle worker the newest weights, or ask for a sign of life."""
        for worker in self._workers:
            if worker.is_busy:
                continue
            if worker.has.number < self._newest.number:
                worker.give(self._newest)
            elif worker.is_suspect or time.monotonic() - worker.heard_s > LOOK_S:
                worker.give(replace(worker.has, packed=self._look))

    def busy(self) -> Mapping[Member, PolicyWorker]:
        """Return the workers from which a message is expected."""
        return {worker.member: worker for worker in self._workers if worker.is_busy}

    def hear(self, worker: PolicyWorker) -> None:
        """Receive a message from a worker."""
        loss = worker.receive()
        if loss is not None:
            self._on_loss(f"policy worker: {loss.reason}")
            worker.start_anew()

    def of(self, number: int) -> PolicyWorker | None:
        """Return the policy worker for environment worker ``number``, or None if none is ready.

        It is the same one as long as this one is ready.
        """
        home = self._workers[number % len(self._workers)]
        ready = [worker for worker in self._workers if self._is_ready(worker)]
        return home if home in ready else ready[number % len(ready)] if ready else None

    def batch_size(self) -> float:
        """Return the mean number of observations per prediction, or 0 before the first."""
        found = [worker.status for worker in self._workers if worker.status is not None]
        batches = sum(status.batches for status in found)
        return sum(status.rows for status in found) / max(1, batches)

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.member.stop()

    def _is_ready(self, worker: PolicyWorker) -> bool:
        is_here = worker.status is not None and not worker.is_suspect
        return is_here and worker.has.number == self._newest.number

    def _is_published(self) -> bool:
        ready = [worker for worker in self._workers if self._is_ready(worker)]
        behind = [worker for worker in self._workers if worker.status and worker not in ready]
        return bool(ready) and not behind


class PolicyWorker:
    """A policy worker and its weights.

    Attributes:
        status: last status of the worker, or None while it starts.
        has: weights with which the worker acts.
        is_suspect: true if an environment worker has lost its connection to this worker.
        heard_s: time of the last status.
    """

    def __init__(self, plan: PolicyPlan, backend: Backend[Any]) -> None:
        self._plan, self._backend = plan, backend
        self._start()

    def _start(self) -> None:
        self.member: Member = self._backend.start(partial(PolicyWork, self._plan))
        self.status: Status | None = None
        self.has = PackedWeights(-1, -1, None)
        self._given: PackedWeights | None = None
        self.is_suspect, self.heard_s = False, 0.0

    @property
    def is_busy(self) -> bool:
        """True if the worker has not answered the last message yet."""
        return self._given is not None

    def give(self, item: PackedWeights) -> None:
        """Send weights, or a request for a sign of life."""
        self._given = item
        self.member.give(item.packed)

    def receive(self) -> Lost | None:
        """Receive the worker's status; return a :class:`Lost` if the worker is gone or hangs, else None.

        Raises:
            UserError: the worker could not be prepared, or cannot load the weights.
        """
        answer = self.member.answer()
        if isinstance(answer, Unprepared):
            raise answer.error
        if isinstance(answer, Lost) and answer.died:
            return answer
        if isinstance(answer, Answer) and self._given is not None:
            # The packed weights are not kept, so that their back end may free the memory.
            self.status, self.has = answer.value, replace(self._given, packed=None)
            self._given = None
            self.is_suspect, self.heard_s = False, time.monotonic()
            return None
        raise WorkerError(f"policy worker: {getattr(answer, 'reason', answer)}")

    def start_anew(self) -> None:
        """Replace the worker by a new one."""
        self.member.stop()
        self._start()
