"""Collection of environment steps whose actions come from policy workers: the side of the training process."""

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
    """Collects with one environment worker for each blueprint, all of which ask policy workers for actions.

    In step with learning (``max_staleness`` None) a collection waits for all environment workers; otherwise each
    continues as soon as its last steps were taken. A policy worker that dies or hangs is replaced while its
    environments wait, without loss. An environment worker is replaced as by
    :class:`imitate.online.workers.ProcessCollector`.

    Args:
        blueprints: of the environment workers.
        algo: whose weights act.
        policy_workers: how many of them.
        ring: groups that the environments of a worker form.
        num_agents: agents of an environment, each of which has a lane.
        step_timeout_s: a process that takes longer for a step or a prediction counts as hung.
        max_staleness: updates by which weights may lag; None: collect in step with learning.
        push_every_s: least time between two versions of the weights that policy workers get.
        place: opened for the workers, and closed with this; None: processes of this machine.

    Attributes:
        version: updates of the weights so far, to be set by whoever learns.
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
        # One seed for all: draws depend on the numbers of the environments, not on the worker that has them.
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
        """The most updates by which the weights behind steps lagged when these came."""
        return self._bound.seen

    def collect(self, num_steps: int, *, random: bool = False) -> Collected:
        """``num_steps`` steps of each environment, or of some of them where updates do not wait."""
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
        """Updates until weights that are out become too old; None: any number."""
        newest = self.version if self._publisher.version is None else self._publisher.version
        return self._bound.allowed(self.version, min(self._versions_out(), default=newest))

    def metrics(self) -> dict[str, float]:
        """``Metrics/Staleness``, and ``Metrics/ActingBatch``: mean number of observations of a prediction."""
        return {
            "Metrics/Staleness": float(self.staleness),
            "Metrics/ActingBatch": self._policies.batch_size(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Episode counters, as last received."""
        return {"workers": [seat.state for seat in self._seats]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`: running episodes are left."""
        for seat, saved in zip(self._seats, state["workers"], strict=True):
            seat.restore(saved)

    def close(self) -> None:
        """End the workers, and leave the place where they ran."""
        with self._opened:
            idle = [seat.member for seat in self._seats if seat.request is None]
            for member in idle:
                member.dismiss()
            for seat in self._seats:
                seat.member.stop(patience_s=PATIENCE_S if seat.member in idle else 0.0)
            self._policies.close()

    def _versions_out(self) -> list[int]:
        """Versions of the weights behind steps that are under way.

        A worker without a place takes no steps yet; those that it takes later have its policy worker's newest weights.
        """
        busy = [seat for seat in self._seats if seat.request is not None]
        return [seat.version for seat in busy if not seat.member.waits()]

    def _send(self, num_steps: int, random: bool) -> None:
        """Ask all environment workers that have nothing to do for steps, unless learning waits."""
        idle = [seat for seat in self._seats if seat.request is None]
        if not idle or self._bound.is_used_up(self.version, self._versions_out()):
            return
        self._policies.publish(Weights(self.progress, self._publisher.newest(self.version, ())))
        for number, seat in enumerate(self._seats):
            policy = self._policies.of(number)
            if seat in idle and policy is not None:
                seat.send(StepsWanted(num_steps, random), policy)

    def _receive(self) -> tuple[list[Collected], list[int]]:
        """Receive steps: where learning waits, from all workers but those without a place, else from at least one."""
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
        """Let environment workers that lost their policy worker go on with one that is ready."""
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
        """Start another worker in place of one that died or hangs; return the numbers of its environments."""
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
