"""Many demonstrations from many processes into one file.

The content depends on the plan alone: episode i has its own seed, failures are replaced inside the episode, and the
file is written in the order of the episodes, however many workers there are.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from imitate.collection.demonstrate import Demonstration, Plan, demonstrate, describe
from imitate.data import DatasetWriter, Episode
from imitate.errors import DatasetError, EnvError

VALID_FRACTION = 0.1
_MAX_CRASHES = 3


@dataclass
class CollectionReport:
    """What came of a collection.

    Attributes:
        path: the file.
        demos: episodes in it.
        solved: those of them that succeed.
        attempts: episodes played, replaced failures included.
        steps: control steps in the file.
        seconds: wall time.
        size_mb: of the file.
        quality: demos per level.
        problems: simulator failures that were survived, in words.
    """

    path: str
    demos: int = 0
    solved: int = 0
    attempts: int = 0
    steps: int = 0
    seconds: float = 0.0
    size_mb: float = 0.0
    quality: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def success_rate(self) -> float:
        """Solved attempts among all attempts."""
        return self.solved / self.attempts if self.attempts else 0.0

    @property
    def mean_steps(self) -> float:
        """Mean length of the recorded episodes."""
        return self.steps / self.demos if self.demos else 0.0


def collect(
    path: str | Path,
    plan: Plan,
    *,
    num: int,
    workers: int = 1,
    overwrite: bool = False,
    on_demo: Callable[[CollectionReport], None] | None = None,
) -> CollectionReport:
    """Record ``num`` demonstrations.

    Filter keys: ``train`` and ``valid`` (10 %, drawn with the plan's seed); with several levels of quality also one
    per level, and ``<level>_train``, ``<level>_valid``.

    Args:
        path: the HDF5 file. It appears when it is complete; until then the data lie beside it.
        plan: environment, expert's quality, noise, seed.
        num: demonstrations.
        workers: processes.
        overwrite: replace an existing file.
        on_demo: called after each recorded demonstration.

    Raises:
        EnvError: no such expert or environment, or the simulator keeps crashing.
        DatasetError: the file exists.
    """
    if Path(path).exists() and not overwrite:
        raise DatasetError(
            f"{path}: exists already; choose another name, or replace it with --overwrite"
        )
    report = CollectionReport(path=str(path))
    started = time.monotonic()
    levels: dict[str, list[str]] = {}
    with _Workers(workers) as pool:
        env_meta = pool.call(describe, plan)
        control_freq = env_meta.get("env_kwargs", {}).get("control_freq")
        with DatasetWriter(
            path, env_meta, overwrite=overwrite, control_freq=control_freq, strict=False
        ) as writer:
            for demo in pool.in_order(plan, num):
                name = writer.append_episode(_episode(demo))
                levels.setdefault(demo.quality, []).append(name)
                _count(report, demo)
                report.problems = [*report.problems, *demo.problems, *pool.take_problems()]
                report.seconds = time.monotonic() - started
                if on_demo is not None:
                    on_demo(report)
            for key, members in _filter_keys(levels, plan.seed).items():
                writer.add_filter_key(key, members)
    report.quality = {level: len(members) for level, members in levels.items()}
    report.seconds = time.monotonic() - started
    report.size_mb = Path(path).stat().st_size / 1e6
    return report


def _count(report: CollectionReport, demo: Demonstration) -> None:
    report.demos += 1
    report.solved += demo.success
    report.attempts += demo.attempts
    report.steps += len(demo.actions)


def _episode(demo: Demonstration) -> Episode:
    timeouts = np.zeros(len(demo.actions), dtype=bool)
    timeouts[-1] = not demo.successes[-1]
    with_noise = (
        {"executed_actions": demo.executed} if demo.attrs["action_label"] == "expert" else {}
    )
    return Episode(
        obs=demo.obs,
        next_obs=demo.next_obs,
        actions=demo.actions,
        rewards=demo.rewards,
        terminals=demo.successes,
        timeouts=timeouts,
        states=demo.states,
        attrs=demo.attrs,
        steps=with_noise,
    )


def _filter_keys(levels: dict[str, list[str]], seed: int) -> dict[str, list[str]]:
    """``train`` and ``valid``; of several levels each one, and its part of these."""
    random = np.random.default_rng(seed)
    split: dict[str, list[str]] = {"train": [], "valid": []}
    keys: dict[str, list[str]] = {}
    for level, names in levels.items():
        order = random.permutation(len(names))
        valid = {names[i] for i in order[: _num_valid(len(names))]}
        parts = {
            "train": [name for name in names if name not in valid],
            "valid": [name for name in names if name in valid],
        }
        keys[level] = names
        for part, members in parts.items():
            split[part] += members
            keys[f"{level}_{part}"] = members
    split = {part: members for part, members in split.items() if members}
    return split | keys if len(levels) > 1 else split


def _num_valid(num: int) -> int:
    return max(1, round(VALID_FRACTION * num)) if num > 1 else 0


class _Workers:
    """Processes that make demonstrations and are replaced when the simulator takes one down."""

    def __init__(self, num: int) -> None:
        self._num = max(1, num)
        self._pool = self._start()
        self._crashes = 0
        self._problems: list[str] = []

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # do not wait for episodes that nobody will read
            for process in list((self._pool._processes or {}).values()):
                process.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _start(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._num,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_leave_interrupts_to_parent,
        )

    def call(self, function: Callable[[Plan], dict[str, Any]], plan: Plan) -> dict[str, Any]:
        """Run one function in a worker."""
        try:
            return self._pool.submit(function, plan).result()
        except BrokenProcessPool as error:
            raise EnvError(
                f"{plan.env_meta.get('env_name')}: the simulator ended its process while the environment was made; "
                "run the environment alone to see why"
            ) from error

    def in_order(self, plan: Plan, num: int) -> Iterator[Demonstration]:
        """Episodes 0 .. num-1, in this order, a few being made ahead."""
        ahead = 2 * self._num
        pending: dict[int, Future[Demonstration]] = {}
        for index in range(num):
            while True:
                for wanted in range(index, min(index + ahead, num)):
                    if wanted not in pending:
                        pending[wanted] = self._pool.submit(demonstrate, plan, wanted)
                try:
                    demo = pending[index].result()
                    break
                except BrokenProcessPool:
                    pending = {key: future for key, future in pending.items() if _is_usable(future)}
                    self._restart(index)
            del pending[index]
            self._crashes = 0
            yield demo

    def _restart(self, index: int) -> None:
        self._crashes += 1
        if self._crashes > _MAX_CRASHES:
            raise EnvError(
                f"the simulator ended its process {self._crashes} times in a row near episode {index}; "
                "try fewer --workers (memory) or another --seed"
            )
        self._problems.append(
            f"a worker process died near episode {index}; its episodes are made again"
        )
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = self._start()

    def take_problems(self) -> list[str]:
        """What went wrong since the last call, in words."""
        problems, self._problems = self._problems, []
        return problems


def _is_usable(future: Future[Demonstration]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _leave_interrupts_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
