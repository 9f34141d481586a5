"""Collection of demonstrations by several processes into one file, or into shards.

The content depends on the plan but not on the number of workers: each episode has its own seed, a failed attempt is
repeated within the episode, and the file is written in the order of the episodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from imitate.collect.collected_files import (
    CollectedFile,
    CollectedFiles,
    finish_folder,
    prepare_folder,
    settings_of,
    shards_of,
)
from imitate.collect.demonstrate import DESCRIBE, Demonstration, Plan, prepare_demonstrations
from imitate.crew import Crew, Done, Limits, Lost
from imitate.crew.backend import Backend
from imitate.data import Episode
from imitate.errors import EnvError
from imitate.system.processes import STEP_TIMEOUT_S
from imitate.system.text import SIGNALS

VALID_FRACTION = 0.1
_HOPELESS = 3  # Number of lost episodes, with none recorded, after which the collection fails.


@dataclass
class CollectionReport:
    """Report of a collection.

    Attributes:
        path: the file.
        demos: number of episodes in the file or the shards.
        resumed: number of demos that an interrupted collection recorded.
        files: number of files: 1, or the number of shards.
        solved: number of successful demos.
        unknown: number of demos whose environment reports no success.
        attempts: number of attempts, including failed ones that were repeated.
        steps: number of control steps in the file.
        seconds: wall time.
        size_mb: size of the file.
        quality: number of demos by quality level of the demonstrator.
        problems: descriptions of simulator failures that did not end the collection.
        lost: for each episode that is missing because its process crashed or hung in both tries, the reason.
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
    lost: dict[str, str] = field(default_factory=dict)
    resumed: int = 0
    files: int = 1
    unknown: int = 0

    @property
    def success_rate(self) -> float | None:
        """Share of the attempts that solved the task; None if the environment reports no success."""
        if self.unknown and self.unknown == self.demos:
            return None
        return self.solved / self.attempts if self.attempts else 0.0

    @property
    def mean_steps(self) -> float:
        """Mean number of steps of the recorded episodes."""
        return self.steps / self.demos if self.demos else 0.0


def collect(
    path: str | Path,
    plan: Plan,
    *,
    num: int,
    workers: int = 1,
    overwrite: bool = False,
    resume: bool = False,
    on_demo: Callable[[CollectionReport], None] | None = None,
    step_timeout_s: float = STEP_TIMEOUT_S,
    shard_demos: int | None = None,
    backend: Backend[Any] | None = None,
) -> CollectionReport:
    """Record ``num`` demonstrations.

    The filter keys ``train`` and ``valid`` (10 %, drawn with the plan's seed) are written; with several quality levels
    also ``<level>``, ``<level>_train`` and ``<level>_valid`` for each.

    Args:
        path: the HDF5 file, or the folder of the shards. A file appears when it is complete; until then the data are in
            a file beside it.
        plan: environment, expert's quality, noise, seed.
        num: number of demonstrations.
        workers: number of processes.
        overwrite: true to replace an existing file.
        resume: continue an interrupted collection of the same plan after its last recorded episode; a finished
            collection is only reported.
        on_demo: called with the report so far after each recorded demonstration.
        step_timeout_s: seconds after which a call of the simulator counts as hung (five times as long for making it).
            Its process is ended and the episode tried once more, then left out and reported.
        shard_demos: number of episodes per shard in a folder, which gets an ``index.json`` at the end; None writes a
            single file. The demos are the same in both cases.
        backend: back end of the workers, or None for processes on this machine.

    Raises:
        EnvError: the expert or the environment does not exist, or none of the first episodes can be recorded.
        DatasetError: the file exists, or an interrupted collection of another plan left something beside it.
    """
    started, out = time.monotonic(), Path(path)
    report = CollectionReport(path=str(path))
    name_of_env = plan.env_meta.get("env_name")
    if shard_demos is None:
        pieces, more, qualities = [CollectedFile(out, range(num))], {}, None
    else:
        pieces, more = shards_of(out, num, shard_demos), {"num": num, "shard_demos": shard_demos}
        qualities = {number: plan.quality(number) for number in range(num)}
        prepare_folder(out, pieces, overwrite=overwrite, resume=resume)
    files = CollectedFiles(
        pieces,
        settings_of(plan, **more),
        partial(filter_keys, seed=plan.seed),
        qualities=qualities,
        overwrite=overwrite,
        resume=resume,
    )
    _take_over(report, files)

    def on_done() -> None:
        report.seconds = time.monotonic() - started
        if on_demo is not None:
            on_demo(report)

    if not files.are_finished:
        prepare, limits = partial(prepare_demonstrations, plan), Limits(call_s=step_timeout_s)
        with Crew[Any, Any](prepare, workers, limits=limits, backend=backend) as crew:
            _record(crew, files, report, num, name_of_env, on_done)
    if shard_demos is not None:
        finish_folder(out, pieces)
    there = [piece.path for piece in pieces if piece.path.exists()]
    report.files = len(there)
    report.seconds = time.monotonic() - started
    report.size_mb = sum(file.stat().st_size for file in there) / 1e6
    return report


def _record(
    crew: Crew[Any, Any],
    files: CollectedFiles,
    report: CollectionReport,
    num: int,
    env_name: Any,
    on_demo: Callable[[], None],
) -> None:
    """Record the missing episodes; call ``on_demo`` after each episode that is written."""
    results = crew.in_order([DESCRIBE, *files.missing])
    env_meta = _taken(next(results).result, env_name)
    with files:
        files.begin(env_meta)
        for done in results:
            _note_retries(report, done)
            if isinstance(done.result, Lost) and done.result.died:
                report.lost[f"episode {done.item}"] = done.result.reason
                _check_hope(report, num, env_name)
                continue
            demo: Demonstration = _taken(done.result, env_name)
            files.add(done.item, demo.quality, _episode(demo))
            _count(report, demo.quality, demo.success, demo.attempts, len(demo.actions))
            report.problems += demo.problems
            on_demo()


def _take_over(report: CollectionReport, files: CollectedFiles) -> None:
    """Add the episodes of an interrupted collection to the report."""
    for demo in files.earlier:
        _count(report, demo.quality, demo.success, demo.attempts, demo.steps)
    report.resumed = len(files.earlier)
    for number in files.lost:
        report.lost[f"episode {number}"] = "it was lost before the interruption"


def _note_retries(report: CollectionReport, done: Done[Any, Any]) -> None:
    report.problems += [f"episode {done.item}: {loss.reason}; tried again" for loss in done.retried]


def _check_hope(report: CollectionReport, num: int, env_name: Any) -> None:
    """Raise EnvError if the first episodes are all lost, because the cause is then not a single episode."""
    if len(report.lost) >= min(_HOPELESS, num) and not report.demos:
        episode, reason = next(iter(report.lost.items()))
        raise EnvError(
            f"{env_name}: none of the first {len(report.lost)} episodes could be recorded; {episode}: {reason}; try "
            "fewer --workers (memory) or another --seed"
        )


def _count(
    report: CollectionReport, quality: str, success: bool | None, attempts: int, steps: int
) -> None:
    report.demos += 1
    report.quality[quality] = report.quality.get(quality, 0) + 1
    report.solved += bool(success)
    report.unknown += success is None
    report.attempts += attempts
    report.steps += steps


def _episode(demo: Demonstration) -> Episode:
    timeouts = np.zeros(len(demo.actions), dtype=bool)
    timeouts[-1] = not demo.terminals[-1]
    steps = {SIGNALS + name: values for name, values in demo.signals.items()}
    if demo.attrs["action_label"] == "expert":
        steps["executed_actions"] = demo.executed
    return Episode(
        obs=demo.obs,
        next_obs=demo.next_obs,
        actions=demo.actions,
        rewards=demo.rewards,
        terminals=demo.terminals,
        timeouts=timeouts,
        states=demo.states,
        attrs=demo.attrs,
        steps=steps,
    )


def filter_keys(qualities: Mapping[int, str], seed: int) -> dict[str, list[int]]:
    """Choose the episodes of ``train`` and ``valid``, and with several quality levels of the filter keys of each level.

    Args:
        qualities: quality level by episode number.
        seed: random seed of the choice.

    Returns:
        The episode numbers by filter key.
    """
    levels: dict[str, list[int]] = {}
    for number, level in qualities.items():
        levels.setdefault(level, []).append(number)
    random = np.random.default_rng(seed)
    split: dict[str, list[int]] = {"train": [], "valid": []}
    keys: dict[str, list[int]] = {}
    for level, numbers in levels.items():
        order = random.permutation(len(numbers))
        valid = {numbers[i] for i in order[: _num_valid(len(numbers))]}
        parts = {
            "train": [number for number in numbers if number not in valid],
            "valid": [number for number in numbers if number in valid],
        }
        keys[level] = numbers
        for part, members in parts.items():
            split[part] += members
            keys[f"{level}_{part}"] = members
    split = {part: members for part, members in split.items() if members}
    return split | keys if len(levels) > 1 else split


def _num_valid(num: int) -> int:
    return max(1, round(VALID_FRACTION * num)) if num > 1 else 0


def _taken(found: Any, env_name: Any) -> Any:
    """Return the result of a worker.

    Raises:
        EnvError: the worker failed.
    """
    if isinstance(found, Lost):
        died = f"{env_name}: {found.reason}; run the environment alone to see why"
        raise found.error or EnvError(died if found.died else found.reason)
    return found
