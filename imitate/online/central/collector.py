"""Collector in the training process for environment workers whose actions come from policy workers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from imitate.algo.base.algo import Algo
from imitate.crew import Lost
from imitate.crew.backend import Backend
from imitate.crew.local import LocalBackend
from imitate.errors import EnvError
from imitate.online.acting_weights import Publisher
from imitate.online.blueprint import Blueprint
from imitate.online.central.env_worker import EnvPlan, Steps, StepsWanted
from imitate.online.central.policies import PolicyWorkers
from imitate.online.central.policy_worker import PolicyPlan, Weights
from imitate.online.central.seat import EnvSeat
from imitate.online.merging import merged_parts
from imitate.online.seats import PATIENCE_S, collector_limits
from imitate.online.staleness import StalenessBound
from imitate.online.steps import Collected
from imitate.online.workers import MAX_REPLACEMENTS, START_S


class CentralCollector:
    """Collects steps with one environment worker per blueprint; all of them ask policy workers for actions.

    If ``max_staleness`` is None, a collection waits for all environment workers; otherwise each continues as soon as
    its last steps were received. A policy worker that dies or hangs is replaced while its environments wait, without
    loss. An environment worker is replaced as by :class:`imitate.online.workers.ProcessCollector`.

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
        self._publisher = Publisher(algo, every_s=push_every_s)
        self._messages: list[str] = []
        self._replaced = 0
        self._all_by_s = time.monotonic() + START_S
        # One seed for all: random draws depend on the numbers of the environments, not on their worker.
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
        """Collect ``num_steps`` steps of each environment, or of only some of them if updates do not wait."""
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

    def updates_allowed(self) -> int | None:
        """Return the number of updates until weights in use become too old, or None if there is no limit."""
        newest = self.version if self._publisher.version is None else self._publisher.version
        return self._bound.allowed(self.version, min(self._versions_out(), default=newest))

    def metrics(self) -> dict[str, float]:
        """``Metrics/Staleness``, and ``Metrics/ActingBatch``: mean number of observations of a prediction."""
        return {
            "Metrics/Staleness": float(self.staleness),
            "Metrics/ActingBatch": self._policies.batch_size(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the episode counters, as last received."""
        return {"workers": [seat.state for seat in self._seats]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; running episodes are dropped."""
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
        self._policies.publish(Weights(self.progress, self._publisher.newest(self.version, ())))
        for number, seat in enumerate(self._seats):
            policy = self._policies.of(number)
            if seat in idle and policy is not None:
                seat.send(StepsWanted(num_steps, random), policy)

    def _receive(self) -> tuple[list[Collected], list[int]]:
        """Receive steps: from all started workers if learning waits for them, otherwise from at least one."""
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
            self._bound.came(self.version, part.version)
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
