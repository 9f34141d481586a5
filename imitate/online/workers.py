"""Collection of environment steps in several processes, each with a copy of the policy and its own environments.

Every request carries the newest weights. In step with learning (``max_staleness`` None) a collection waits for all
processes; otherwise each continues as soon as its last steps were taken, and learning waits where the weights of a
request that is still out would become too old. A process that dies or hangs is replaced: the steps of its request and
the episodes that ran in it are lost, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imitate.algo.algo import Algo
from imitate.algo.factory import algo_factory
from imitate.config import load_config
from imitate.crew import Limits, Lost, Reports
from imitate.crew.backend import Answer, Backend, Member, Unprepared
from imitate.crew.local import LocalBackend
from imitate.envs.env import Env
from imitate.errors import EnvError
from imitate.models.preprocess import Preprocess
from imitate.online.collector import LocalCollector
from imitate.online.env_group import EnvGroup
from imitate.online.steps import Array, Collected, Step
from imitate.processes import MAKE, MAKE_FACTOR

PATIENCE_S = 2.0
"""Time in which idle workers may end."""
START_S = 300.0
"""Time after which a process that is not ready counts as hung."""
MAX_REPLACEMENTS = 10
"""Largest number of processes that are replaced in a row without steps from any."""


@dataclass(frozen=True)
class Blueprint:
    """Picklable description from which a worker process builds its collector.

    Attributes:
        make: makes one environment.
        lanes: numbers of the lanes of its environments.
        group: further arguments of :class:`EnvGroup`.
        algo: the algorithm's name, configuration (JSON), shapes of observations and action dimensions.
        low, high: limits of actions.
        num_choices: the first so many numbers of an action are a choice, one-hot.
        seed: of what the policy draws.
    """

    make: Callable[[], Env]
    lanes: NDArray[np.int64]
    group: dict[str, Any]
    algo: tuple[str, str, dict[str, tuple[int, ...]], int]
    low: Array
    high: Array
    num_choices: int
    seed: int

    def collector(self, algo: Algo) -> LocalCollector:
        """A collector in this process."""
        group = EnvGroup(self.make, self.lanes, **self.group)
        return LocalCollector(group, algo, self.low, self.high, num_choices=self.num_choices)


@dataclass(frozen=True)
class _Request:
    num_steps: int
    random: bool
    progress: float
    version: int
    weights: dict[str, Any]
    state: dict[str, Any] | None = None


class ProcessCollector:
    """Collects in one process per blueprint.

    Args:
        blueprints: of the processes.
        algo: whose weights act.
        step_timeout_s: a process that takes longer for a step counts as hung.
        max_staleness: updates by which weights may lag; None: collect in step with learning.
        backend: where workers run; None: in processes of this machine.

    Attributes:
        version: updates of the weights so far, to be set by whoever learns.
        staleness: the most updates by which the weights behind steps lagged when these came.
    """

    def __init__(
        self,
        blueprints: Sequence[Blueprint],
        algo: Algo,
        *,
        step_timeout_s: float,
        max_staleness: int | None = None,
        backend: Backend[Any] | None = None,
    ) -> None:
        self.algo, self.version, self.staleness, self.progress = algo, 0, 0, 0.0
        self._limits = Limits(START_S / MAKE_FACTOR, step_timeout_s, start_s=START_S)
        self._max_staleness = max_staleness
        self._backend: Backend[Any] = backend or LocalBackend("imitate-collector")
        self._seats = [_Seat(blueprint, self._backend) for blueprint in blueprints]
        self._messages: list[str] = []
        self._replaced = 0

    def collect(self, num_steps: int, *, random: bool = False) -> Collected:
        """``num_steps`` steps of each environment, or of some of them where updates do not wait."""
        self._send(num_steps, random)
        parts, lost = self._receive()
        while not parts:
            for seat in self._seats:
                seat.resend()
            more, more_lost = self._receive()
            parts, lost = more, lost + more_lost
        messages, self._messages = self._messages, []
        if self._max_staleness is not None:
            self._send(num_steps, random)
        return merged_parts(parts, lost, messages)

    def updates_allowed(self) -> int | None:
        """Updates until weights that are out become too old; None: any number."""
        if self._max_staleness is None:
            return None
        out = [seat.request.version for seat in self._seats if seat.request is not None]
        return max(0, min(out, default=self.version) + self._max_staleness - self.version)

    def metrics(self) -> dict[str, float]:
        """``Metrics/Staleness``: the most updates by which weights behind steps lagged."""
        return {"Metrics/Staleness": float(self.staleness)}

    def state_dict(self) -> dict[str, Any]:
        """Episode counters and states of the processes' random numbers, as last received."""
        states = [seat.state for seat in self._seats]
        return {"workers": [None if state is None else _tensors(state) for state in states]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`: running episodes are left."""
        for seat, saved in zip(self._seats, state["workers"], strict=True):
            seat.restore(None if saved is None else _arrays(saved))

    def close(self) -> None:
        """End the processes."""
        for seat in self._seats:
            seat.member.dismiss()
        for seat in self._seats:
            seat.member.stop(patience_s=0.0 if seat.request else PATIENCE_S)

    def _send(self, num_steps: int, random: bool) -> None:
        """Ask all workers that have nothing to do for steps with the newest weights, which are pickled once."""
        idle = [seat for seat in self._seats if seat.request is None]
        if not idle:
            return
        weights = acting_weights(self.algo)
        request = _Request(num_steps, random, self.progress, self.version, weights)
        packed = self._backend.pack(request)
        for seat in idle:
            seat.send(request, packed)

    def _receive(self) -> tuple[list[Collected], list[int]]:
        """Receive steps: from all processes where learning waits, else from at least one."""
        parts: list[Collected] = []
        lost: list[int] = []
        waiting = {seat.member: seat for seat in self._seats if seat.request is not None}
        while waiting and (self._max_staleness is None or not (parts or lost)):
            for member in self._backend.heard(list(waiting), self._limits):
                seat = waiting.pop(member)
                came = seat.receive()
                if isinstance(came, Lost):
                    lost += seat.blueprint.lanes.tolist()
                    self._replace(seat, came)
                else:
                    self.staleness = max(self.staleness, self.version - came.version)
                    parts.append(came)
                    self._replaced = 0
        return parts, lost

    def _replace(self, seat: _Seat, loss: Lost) -> None:
        """Start another worker in place of one that died or hangs."""
        words = f"environments {seat.blueprint.lanes.tolist()}: {loss.reason}"
        self._replaced += 1
        if self._replaced >= MAX_REPLACEMENTS:
            raise EnvError(
                f"{words}; {MAX_REPLACEMENTS} in a row: run imitate check-env, or collect with "
                "train.online.num_workers 0"
            )
        self._messages.append(f"{words}; its episodes are left out, another one takes its place")
        seat.start_anew()


class _Seat:
    """The environments of a blueprint, the worker that has them now, and the request that it works on."""

    def __init__(self, blueprint: Blueprint, backend: Backend[Any]) -> None:
        self.blueprint, self._backend = blueprint, backend
        self.request: _Request | None = None
        self.state: dict[str, Any] | None = None
        self._last: _Request | None = None
        self._restores = False
        self._start()

    def _start(self) -> None:
        self.member: Member = self._backend.start(partial(_CollectorWork, self.blueprint))

    def send(self, request: _Request, packed: Any) -> None:
        """Ask for steps; a worker that is gone is noticed when its answer is waited for.

        Args:
            request: to the worker.
            packed: the same, as the backend packs it for all workers.
        """
        self.request = self._last = request
        if self._restores:
            self._restores = False
            packed = self._backend.pack(replace(request, state=self.state))
        self.member.give(packed)

    def resend(self) -> None:
        """Ask a new worker what the one before it did not answer."""
        if self.request is None and self._last is not None:
            self.send(self._last, self._backend.pack(self._last))

    def receive(self) -> Collected | Lost:
        """Return the steps that came, or the loss of the worker.

        Raises:
            UserError: the worker could not be prepared, or its environments fail each time.
        """
        answer = self.member.answer()
        if isinstance(answer, Unprepared):
            raise answer.error
        if isinstance(answer, Lost):
            if answer.died:
                return answer
            lanes = self.blueprint.lanes.tolist()
            raise answer.error or EnvError(f"environments {lanes} failed: {answer.reason}")
        assert isinstance(answer, Answer)  # it sends no notes, and its request is under way
        self.request = None
        collected, self.state = answer.value
        return Collected(**collected)

    def start_anew(self) -> None:
        """Start another worker, whose episodes have other seeds than those that were lost."""
        self.member.stop()
        self._start()
        self.request = None
        if self.state is not None:
            begun = [number + 1_000_000 for number in self.state["begun"]]
            self.restore({**self.state, "begun": begun})

    def restore(self, state: dict[str, Any] | None) -> None:
        """Let the worker resume from a state, with its next request."""
        self.state, self._restores = state, state is not None


def acting_weights(algo: Algo) -> dict[str, Any]:
    """Weights and normalization with which a copy of the algorithm acts in another process, as plain arrays."""
    nets = algo.nets if algo.ema is None else algo.ema.module
    names = (algo.main_net, *algo.acting_nets)
    chosen = {name: nets.get_submodule(name).state_dict() for name in names}
    return {
        "nets": _arrays(chosen),
        "preprocess": _arrays(algo.preprocess.to_dict()),
    }


def load_acting_weights(algo: Algo, weights: Mapping[str, Any]) -> None:
    """Act as the algorithm whose :func:`acting_weights` these are."""
    for name, state in _tensors(weights["nets"]).items():
        algo.nets.get_submodule(name).load_state_dict(state)
    algo.preprocess = Preprocess.from_dict(_tensors(weights["preprocess"])).to(algo.device)


def merged_parts(
    parts: Sequence[Collected], lost: Sequence[int], messages: Sequence[str]
) -> Collected:
    """The steps of several processes side by side, in the order of their lanes, whichever came first."""
    parts = sorted(parts, key=lambda part: int(part.lanes[0]))
    steps = [_side_by_side(row) for row in zip(*(part.steps for part in parts), strict=True)]
    return Collected(
        steps,
        np.concatenate([part.lanes for part in parts]),
        [episode for part in parts for episode in part.episodes],
        min(part.version for part in parts),
        (*messages, *(text for part in parts for text in part.messages)),
        np.array(lost, dtype=np.int64),
    )


def _side_by_side(steps: Sequence[Step]) -> Step:
    if len(steps) == 1:
        return steps[0]

    def joined(name: str) -> Any:
        values = [getattr(step, name) for step in steps]
        if isinstance(values[0], dict):
            return {key: np.concatenate([value[key] for value in values]) for key in values[0]}
        return np.concatenate(values)

    names = ("obs", "actions", "rewards", "terminals", "timeouts", "next_obs")
    return Step(
        **{name: joined(name) for name in names},
        lost=_joined_marks(steps, "lost"),
        extras=joined("extras"),
        intervened=_joined_marks(steps, "intervened"),
    )


def _joined_marks(steps: Sequence[Step], name: str) -> NDArray[np.bool_] | None:
    """The marks of all environments; None where no process has any."""
    found = [getattr(step, name) for step in steps]
    if all(marks is None for marks in found):
        return None
    unmarked = [np.zeros(len(step.rewards), dtype=np.bool_) for step in steps]
    joined: NDArray[np.bool_] = np.concatenate(
        [none if marks is None else marks for marks, none in zip(found, unmarked, strict=True)]
    )
    return joined


class _CollectorWork:
    """Work of a worker process: answers requests with steps."""

    def __init__(self, blueprint: Blueprint, reports: Reports) -> None:
        reports(MAKE)
        torch.set_num_threads(1)
        torch.manual_seed(blueprint.seed)
        name, config, shapes, ac_dim = blueprint.algo
        self._algo = algo_factory(name, load_config(config), shapes, ac_dim, load_pretrained=False)
        self._algo.ema = None
        self._collector = blueprint.collector(self._algo)
        self._collector.on_step = partial(reports, "")
        reports("")

    def __call__(self, request: _Request) -> tuple[dict[str, Any], dict[str, Any]]:
        collector = self._collector
        if request.state is not None:
            collector.load_state_dict(request.state)
            torch.set_rng_state(torch.from_numpy(request.state["rng"].copy()))
        load_acting_weights(self._algo, request.weights)
        collector.progress, collector.version = request.progress, request.version
        came = collector.collect(request.num_steps, random=request.random)
        state = {**collector.state_dict(), "rng": torch.get_rng_state().numpy()}
        return vars(came), state


def _arrays(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _arrays(value) for key, value in tree.items()}
    return tree.detach().cpu().numpy() if isinstance(tree, torch.Tensor) else tree


def _tensors(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _tensors(value) for key, value in tree.items()}
    return torch.from_numpy(tree) if isinstance(tree, np.ndarray) else tree
