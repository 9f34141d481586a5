"""Workers that collect steps: their blueprints, weights and requests, and the merging of their steps."""

import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imitate.algo.base.acting import acting_names, acting_state, drop_unused
from imitate.algo.base.algo import Algo
from imitate.algo.base.factory import algo_factory
from imitate.config import load_config
from imitate.crew import Limits, Lost, Reports
from imitate.crew.backend import Answer, Backend, Member, Unprepared
from imitate.crew.shared import Shared
from imitate.envs.env import Env
from imitate.errors import EnvError
from imitate.models.preprocess import Preprocess
from imitate.system import clock
from imitate.system.processes import MAKE, MAKE_FACTOR
from imitate.train.online.collector import LocalCollector, WarmUp
from imitate.train.online.env_group import EnvGroup
from imitate.train.online.steps import Array, Collected, Step


@dataclass(frozen=True)
class Blueprint:
    """Picklable description of the environments of one worker and of the policy that acts in them.

    It contains no paths and no weights, so it can be sent to another machine: weights come with the requests.

    Attributes:
        make: makes one environment.
        lanes: numbers of its environments' lanes among all lanes of the training; they determine the seeds of episodes.
        group: further arguments of :class:`EnvGroup`.
        algo: the algorithm's name, configuration (JSON), shapes of observations and action dimensions.
        low, high: limits of actions.
        num_choices: number of discrete choices, one-hot in the first values of an action.
        seed: seed of the policy's random numbers.
        warmup: arguments of :class:`~.collector.WarmUp` (its name, the environment and the shapes), or None for random
            actions.
    """

    make: Callable[[], Env]
    lanes: NDArray[np.int64]
    group: dict[str, Any]
    algo: tuple[str, str, dict[str, tuple[int, ...]], int]
    low: Array
    high: Array
    num_choices: int
    seed: int
    warmup: tuple[str, str, dict[str, tuple[int, ...]]] | None = None

    def env_group(self) -> EnvGroup:
        """Make the environments, in this process."""
        return EnvGroup(self.make, self.lanes, **self.group)

    def acting_algo(self) -> Algo:
        """Build a copy of the algorithm that acts with received weights; it reads no file."""
        name, config, shapes, ac_dim = self.algo
        algo = algo_factory(name, load_config(config), shapes, ac_dim, load_pretrained=False)
        algo.ema = None
        return algo

    def collector(self, algo: Algo) -> LocalCollector:
        """Make the environments and return a collector of the algorithm's steps in this process."""
        warmup = self.warmup and WarmUp(*self.warmup, self.low, self.high)
        return LocalCollector(
            self.env_group(),
            algo,
            self.low,
            self.high,
            num_choices=self.num_choices,
            warmup=warmup,
        )


MOST_IN_USE = 2
"""Largest number of versions of the weights that exist at a time, here and in each node's memory."""


def acting_weights(algo: Algo) -> dict[str, Any]:
    """Return weights and normalization for a copy of the algorithm that acts elsewhere, as plain arrays."""
    nets = algo.nets if algo.ema is None else algo.ema.module
    chosen = {name: acting_state(nets.get_submodule(name)) for name in acting_names(algo)}
    return {"nets": arrays(chosen), "preprocess": arrays(algo.preprocess.to_dict())}


def load_acting_weights(algo: Algo, weights: Mapping[str, Any]) -> None:
    """Load the :func:`acting_weights` of another copy of the algorithm."""
    drop_unused(algo.nets)
    for name, state in tensors(weights["nets"]).items():
        algo.nets.get_submodule(name).load_state_dict(state)
    algo.preprocess = Preprocess.from_dict(tensors(weights["preprocess"])).to(algo.device)


@dataclass(frozen=True)
class Published:
    """Weights with which workers may act.

    Attributes:
        version: number of updates of the weights.
        shared: the :func:`acting_weights`.
    """

    version: int
    shared: Shared[dict[str, Any]]


class Publisher:
    """Shares the weights of an algorithm, each version once for all workers.

    Args:
        algo: algorithm whose weights are shared.
        every_s: shortest time between two publications, in seconds.
    """

    def __init__(self, algo: Algo, *, every_s: float = 0.0) -> None:
        self._algo, self._every_s = algo, every_s
        self._newest: Published | None = None
        self._normalization = b""
        self._published_s = 0.0

    @property
    def version(self) -> int | None:
        """Version of the newest publication, or None before the first."""
        return None if self._newest is None else self._newest.version

    def newest(self, version: int, in_use: Iterable[Published]) -> Published:
        """Return the newest weights that may be sent; publish new ones first if enough time has passed.

        While workers act with :data:`MOST_IN_USE` publications, no new one is made: the newest of them is returned.

        Args:
            version: number of updates of the algorithm's weights so far.
            in_use: publications with which workers act at present.
        """
        newest, now = self._newest, clock.now()
        if newest is not None and (
            len({one.shared.key for one in in_use}) >= MOST_IN_USE
            or now - self._published_s < self._every_s
        ):
            return newest
        normalization = pickle.dumps(arrays(self._algo.preprocess.to_dict()))
        if newest is not None and (version, normalization) == (newest.version, self._normalization):
            return newest
        newest = self._newest = None  # lets the old publication be freed before the new one is made
        self._newest = Published(version, Shared(acting_weights(self._algo)))
        self._normalization, self._published_s = normalization, now
        return self._newest


def arrays(tree: Any) -> Any:
    """Return a tree of dictionaries with arrays in place of tensors."""
    if isinstance(tree, Mapping):
        return {key: arrays(value) for key, value in tree.items()}
    return tree.detach().cpu().numpy() if isinstance(tree, torch.Tensor) else tree


def tensors(tree: Any) -> Any:
    """Return a tree of dictionaries with tensors in place of arrays."""
    if isinstance(tree, Mapping):
        return {key: tensors(value) for key, value in tree.items()}
    return torch.from_numpy(tree) if isinstance(tree, np.ndarray) else tree


PATIENCE_S = 2.0
"""Longest time in seconds that idle workers may take to end."""


def collector_limits(step_timeout_s: float, start_timeout_s: float) -> Limits:
    """Return the time limits of a collecting worker: for a step or reset, and for starting and making environments."""
    return Limits(start_timeout_s / MAKE_FACTOR, step_timeout_s, start_s=start_timeout_s)


@dataclass(frozen=True)
class StepRequest:
    """Request for steps; the answer is :class:`Collected` as a dictionary and the worker's state.

    Attributes:
        num_steps: number of steps of each environment.
        random: true to act randomly.
        progress: fraction of the training that is over.
        weights: weights to act with.
        state: state to resume from, see :attr:`Seat.state`.
    """

    num_steps: int
    random: bool
    progress: float
    weights: Published
    state: dict[str, Any] | None = None


class Seat:
    """The environments of a blueprint, their current worker, and its current request.

    A worker first gets None, which it answers after making its environments: requests with weights are sent only to
    started workers, and the training does not wait for a worker that has not started yet.

    Args:
        blueprint: blueprint of its environments and its policy.
        backend: back end on which its workers run.

    Attributes:
        request: request that the worker has not answered, or None.
        is_ready: true if the worker has made its environments.
        state: state of the worker after its last answer: episode numbers and random generators.
        losses: number of workers lost since it was last set to 0.
        is_first: true if no worker has been lost yet.
    """

    def __init__(self, blueprint: Blueprint, backend: Backend[Any]) -> None:
        self.blueprint, self._backend = blueprint, backend
        self.state: dict[str, Any] | None = None
        self.losses, self.is_first = 0, True
        self._restores = False
        self._start()

    @property
    def is_idle(self) -> bool:
        """True if the worker can be sent a request."""
        return self.is_ready and self.request is None

    def _start(self) -> None:
        self.request: StepRequest | None = None
        self.is_ready = False
        self.member: Member = self._backend.start(partial(CollectorWork, self.blueprint))
        self.member.give(self._backend.pack(None))

    def send(self, request: StepRequest, packed: Any) -> None:
        """Request steps; a lost worker is noticed when its answer is received.

        Args:
            request: request to the worker.
            packed: the same request, packed once by the back end for all workers.
        """
        self.request = request
        if self._restores:
            self._restores = False
            packed = self._backend.pack(replace(request, state=self.state))
        self.member.give(packed)

    def receive(self) -> Collected | Lost | None:
        """Return the received steps, or a :class:`Lost` if the worker died, or None if it has only just started.

        Raises:
            UserError: the worker could not be started, or its environments fail each time.
        """
        answer = self.member.answer()
        if isinstance(answer, Unprepared):
            raise answer.error
        if isinstance(answer, Lost):
            if answer.died:
                return answer
            lanes = self.blueprint.lanes.tolist()
            raise answer.error or EnvError(f"environments {lanes} failed: {answer.reason}")
        if not isinstance(answer, Answer):
            return None  # the worker has started, and makes its environments now
        if not self.is_ready:
            self.is_ready = True
            return None
        self.request = None
        collected, self.state = answer.value
        return Collected(**collected)

    def start_anew(self) -> None:
        """Start another worker, whose episodes have different seeds than the lost ones."""
        self.member.stop()
        self.losses, self.is_first = self.losses + 1, False
        if self.state is not None:
            begun = [number + 1_000_000 for number in self.state["begun"]]
            self.restore({**self.state, "begun": begun})
        self._start()

    def restore(self, state: dict[str, Any] | None) -> None:
        """Let the worker resume from a state at its next request."""
        self.state, self._restores = state, state is not None

    def stop(self) -> None:
        """End the worker, which has received a request to stop."""
        self.member.stop(patience_s=PATIENCE_S if self.is_idle else 0.0)


class CollectorWork:
    """Work of a worker process: answers requests with steps."""

    def __init__(self, blueprint: Blueprint, reports: Reports) -> None:
        reports(MAKE)
        torch.set_num_threads(1)
        torch.manual_seed(blueprint.seed)
        self._algo = blueprint.acting_algo()
        self._collector = blueprint.collector(self._algo)
        self._collector.on_step = partial(reports, "")
        self._loaded: str | None = None
        self.close: Callable[[], None] = self._collector.close
        reports("")

    def __call__(self, request: StepRequest | None) -> Any:
        """Return steps as a dictionary and the state after them, or None if no steps are requested."""
        if request is None:
            return None
        collector, weights = self._collector, request.weights
        if request.state is not None:
            collector.load_state_dict(request.state)
            torch.set_rng_state(torch.from_numpy(request.state["rng"].copy()))
        if weights.shared.key != self._loaded:
            load_acting_weights(self._algo, weights.shared.get())
            self._loaded = weights.shared.key
        collector.progress, collector.version = request.progress, weights.version
        collected = collector.collect(request.num_steps, random=request.random)
        state = {**collector.state_dict(), "rng": torch.get_rng_state().numpy()}
        return vars(collected), state


def merged_parts(
    parts: Sequence[Collected], lost: Sequence[int], messages: Sequence[str]
) -> Collected:
    """Concatenate the steps of several processes in the order of their lanes."""
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
        signals=None if steps[0].signals is None else joined("signals"),
    )


def _joined_marks(steps: Sequence[Step], name: str) -> NDArray[np.bool_] | None:
    """Concatenate the field ``name`` (bool) of the steps, false where it is None; return None if it always is."""
    found = [getattr(step, name) for step in steps]
    if all(marks is None for marks in found):
        return None
    unmarked = [np.zeros(len(step.rewards), dtype=np.bool_) for step in steps]
    joined: NDArray[np.bool_] = np.concatenate(
        [none if marks is None else marks for marks, none in zip(found, unmarked, strict=True)]
    )
    return joined


WINDOW_S = 60.0
"""Number of seconds over which waiting is summed before it is judged."""
MUCH = 0.5
"""Largest share of the time that learning may wait without a warning."""


class StalenessBound:
    """Limits the updates made while workers act with earlier weights.

    Args:
        most: largest number of updates by which weights may lag, or None for no bound and no measurement.

    Attributes:
        seen: largest number of updates by which the weights of received steps lagged.
    """

    def __init__(self, most: int | None) -> None:
        self.most, self.seen = most, 0
        self._asked_at, self._allowed = 0, 0
        self._begun_s, self._waited_s = clock.now(), 0.0
        self._has_warned = False

    def allowed(self, version: int, oldest: int) -> int | None:
        """Return the number of updates that may follow, or None if there is no limit.

        Args:
            version: number of updates so far.
            oldest: version of the oldest weights of steps in progress.
        """
        if self.most is None:
            return None
        self._asked_at, self._allowed = version, max(0, oldest + self.most - version)
        return self._allowed

    def is_used_up(self, version: int, out: Collection[int]) -> bool:
        """Return true if no update may follow until the steps in progress have been received.

        No more steps may be requested then: they would allow further updates, so that the updates per step would depend
        on timing and not on ``train.online.update_ratio``.

        Args:
            version: number of updates so far.
            out: versions of the weights of steps in progress.
        """
        return self.most is not None and bool(out) and 0 < version >= min(out) + self.most

    def record(self, version: int, steps_version: int) -> None:
        """Record steps that were taken with the weights of `steps_version`."""
        self.seen = max(self.seen, version - steps_version)

    @contextmanager
    def waiting(self, version: int) -> Iterator[None]:
        """Context that counts the duration of its body as waiting time of learning, if no update is allowed."""
        begun_s = clock.now()
        yield
        if self.most is not None and 0 < version >= self._asked_at + self._allowed:
            self._waited_s += clock.now() - begun_s

    def advice(self) -> str | None:
        """Return a warning, once, if learning waited for much of the latest :data:`WINDOW_S`; otherwise None."""
        passed_s = clock.now() - self._begun_s
        if self.most is None or self._has_warned or passed_s < WINDOW_S:
            return None
        share, self._waited_s, self._begun_s = self._waited_s / passed_s, 0.0, clock.now()
        if share <= MUCH:
            return None
        self._has_warned = True
        return (
            f"train.online.max_staleness {self.most}: learning waited {share:.0%} of the last {passed_s:.0f} s for "
            "steps with newer weights: raise it, or lower train.online.collect_steps or push_every_s"
        )
