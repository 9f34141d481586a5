"""Collection of environment steps in several processes, each with a copy of the policy and its own environments.

Every request carries the newest weights. In step with learning (``max_staleness`` None) a collection waits for all
processes; otherwise each continues as soon as its last steps were taken, and learning waits where the weights of a
request that is still out would become too old. A process that dies or hangs is replaced: the steps of its request and
the episodes that ran in it are lost, and nothing else.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imitate.algo.algo import Algo
from imitate.algo.factory import algo_factory
from imitate.config import load_config
from imitate.envs.env import Env
from imitate.errors import EnvError
from imitate.models.preprocess import Preprocess
from imitate.online.collector import LocalCollector
from imitate.online.env_group import EnvGroup
from imitate.online.steps import Array, Collected, Step
from imitate.processes import end_with_parent

POLL_S = 0.5
START_S = 300.0
"""Time after which a process that is not ready counts as hung."""
MAX_REPLACEMENTS = 10
"""Largest number of processes that are replaced in a row without steps from any."""


@dataclass(frozen=True)
class Blueprint:
    """Picklable description from which a worker process builds its collector.

    Attributes:
        make: makes one environment.
        lanes: numbers of its environments.
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


class ProcessCollector:
    """Collects in one process per blueprint.

    Args:
        blueprints: of the processes.
        algo: whose weights act.
        step_timeout_s: a process that takes longer for a step counts as hung.
        max_staleness: updates by which weights may lag; None: collect in step with learning.

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
    ) -> None:
        self.algo, self.version, self.staleness, self.progress = algo, 0, 0, 0.0
        self._timeout_s, self._max_staleness = step_timeout_s, max_staleness
        self._workers = [_Worker(blueprint) for blueprint in blueprints]
        self._messages: list[str] = []
        self._replaced = 0

    def collect(self, num_steps: int, *, random: bool = False) -> Collected:
        """``num_steps`` steps of each environment, or of some of them where updates do not wait."""
        for worker in self._workers:
            if worker.request is None:
                self._send(worker, num_steps, random)
        parts, lost = self._receive()
        while not parts:
            for worker in self._workers:
                worker.resend()
            more, more_lost = self._receive()
            parts, lost = more, lost + more_lost
        messages, self._messages = self._messages, []
        if self._max_staleness is not None:
            for worker in self._workers:
                if worker.request is None:
                    self._send(worker, num_steps, random)
        return merged_parts(parts, lost, messages)

    def updates_allowed(self) -> int | None:
        """Updates until weights that are out become too old; None: any number."""
        if self._max_staleness is None:
            return None
        out = [w.request.version for w in self._workers if w.request is not None]
        return max(0, min(out, default=self.version) + self._max_staleness - self.version)

    def metrics(self) -> dict[str, float]:
        """``Metrics/Staleness``: the most updates by which weights behind steps lagged."""
        return {"Metrics/Staleness": float(self.staleness)}

    def state_dict(self) -> dict[str, Any]:
        """Episode counters and states of the processes' random numbers, as last received."""
        states = [worker.state for worker in self._workers]
        return {"workers": [None if state is None else _tensors(state) for state in states]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`: running episodes are left."""
        for worker, saved in zip(self._workers, state["workers"], strict=True):
            worker.restore(None if saved is None else _arrays(saved))

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.end()

    def _send(self, worker: _Worker, num_steps: int, random: bool) -> None:
        weights = acting_weights(self.algo)
        worker.send(_Request(num_steps, random, self.progress, self.version, weights))

    def _receive(self) -> tuple[list[Collected], list[int]]:
        """Receive steps: from all processes where learning waits, else from at least one."""
        parts: list[Collected] = []
        lost: list[int] = []
        waiting = [worker for worker in self._workers if worker.request is not None]
        while waiting and (self._max_staleness is None or not (parts or lost)):
            ready = wait([worker.connection for worker in waiting], timeout=POLL_S)
            for worker in list(waiting):
                came = worker.receive() if worker.connection in ready else None
                if came is not None:
                    self.staleness = max(self.staleness, self.version - came.version)
                    parts.append(came)
                    self._replaced = 0
                elif worker.connection in ready or worker.hangs(self._timeout_s):
                    lost += worker.blueprint.lanes.tolist()
                    self._replace(worker)
                else:
                    continue
                waiting.remove(worker)
        return parts, lost

    def _replace(self, worker: _Worker) -> None:
        """Start another process in place of one that died or hangs."""
        hung = worker.process.is_alive()
        why = f"hung for {self._timeout_s:g} s" if hung else f"died ({worker.process.exitcode})"
        words = f"the process of environments {worker.blueprint.lanes.tolist()} {why}"
        self._replaced += 1
        if self._replaced >= MAX_REPLACEMENTS:
            raise EnvError(
                f"{words}; {MAX_REPLACEMENTS} in a row: run imitate check-env, or collect with "
                "train.online.num_workers 0"
            )
        self._messages.append(f"{words}; its episodes are left out, another one takes its place")
        worker.start_anew()


class _Worker:
    """A process, its pipe, and the request that it works on."""

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint = blueprint
        self.request: _Request | None = None
        self.state: dict[str, Any] | None = None
        self._last: _Request | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._steps = context.RawValue("Q", 0)
        self._seen, self._seen_at = 0, time.monotonic()
        self.process = context.Process(
            target=_collect_in_process, args=(theirs, self._steps, self.blueprint), daemon=True
        )
        self.process.start()
        theirs.close()

    def send(self, request: _Request) -> None:
        self.request = self._last = request
        self._seen_at = time.monotonic()
        try:
            self.connection.send(request)
        except (BrokenPipeError, ConnectionResetError):
            return  # its death is noticed when the answer is waited for

    def resend(self) -> None:
        """Ask a new process what the one before it did not answer."""
        if self.request is None and self._last is not None:
            self.send(self._last)

    def receive(self) -> Collected | None:
        """The answer; None where the process is gone."""
        try:
            answer = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(timeout=5.0)
            return None
        if isinstance(answer, str):
            raise EnvError(answer)
        self.request = None
        collected, self.state = answer
        return Collected(**collected)

    def hangs(self, timeout_s: float) -> bool:
        """Return true if the process has done no step for so long."""
        if not self.process.is_alive():
            return False
        if self._steps.value != self._seen:
            self._seen, self._seen_at = self._steps.value, time.monotonic()
        return time.monotonic() - self._seen_at > (timeout_s if self._seen else START_S)

    def start_anew(self) -> None:
        """Another process, whose episodes have other seeds than those that were lost."""
        self.end(at_once=True)
        self._start()
        self.request = None
        if self.state is not None:
            begun = [number + 1_000_000 for number in self.state["begun"]]
            self.state = {**self.state, "begun": begun}
            self.restore(self.state)

    def restore(self, state: dict[str, Any] | None) -> None:
        """Let the process resume from a state."""
        self.state = state
        if state is not None:
            self.connection.send(state)

    def end(self, at_once: bool = False) -> None:
        if at_once:
            self.process.kill()
        self.connection.close()
        self.process.join(timeout=2.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


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


def _collect_in_process(connection: Connection, steps: Any, blueprint: Blueprint) -> None:
    """Answer requests until the pipe closes: the main function of a worker process."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    torch.manual_seed(blueprint.seed)
    name, config, shapes, ac_dim = blueprint.algo
    algo = algo_factory(name, load_config(config), shapes, ac_dim, load_pretrained=False)
    algo.ema = None
    try:
        collector = blueprint.collector(algo)
        collector.on_step = lambda: setattr(steps, "value", steps.value + 1)
        collector.on_step()  # ready
        while True:
            request = connection.recv()
            if isinstance(request, dict):
                collector.load_state_dict(request)
                torch.set_rng_state(torch.from_numpy(request["rng"].copy()))
                continue
            load_acting_weights(algo, request.weights)
            collector.progress, collector.version = request.progress, request.version
            came = collector.collect(request.num_steps, random=request.random)
            state = {**collector.state_dict(), "rng": torch.get_rng_state().numpy()}
            connection.send((vars(came), state))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the training is over
    except EnvError as error:
        connection.send(str(error))


def _arrays(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _arrays(value) for key, value in tree.items()}
    return tree.detach().cpu().numpy() if isinstance(tree, torch.Tensor) else tree


def _tensors(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _tensors(value) for key, value in tree.items()}
    return torch.from_numpy(tree) if isinstance(tree, np.ndarray) else tree
