"""Collection of demonstrations by several processes into one file, or into shards.

The content depends on the plan but not on the number of workers: each episode has its own seed, a failed attempt is
repeated within the episode, and the file is written in the order of the episodes.

A file gets its name when all of its episodes are finished; until then its demos are in ``<file>.partial``. The demos
and their names do not depend on the division into files: ``demo_k`` is the k-th that was recorded. A folder of shards
gets its index at the end. An interrupted collection continues from the episodes in its files, if the plan is the same.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import Self

from imitate.collect.demonstrate import DESCRIBE, Demonstration, Plan, prepare_demonstrations
from imitate.crew import Crew, Done, Limits, Lost
from imitate.crew.backend import Backend
from imitate.data import DatasetFile, DatasetWriter, Episode
from imitate.data.file.journal import is_being_written, partial_of, roll_back
from imitate.envs.migration import installed_robosuite
from imitate.envs.worlds import RATES_HZ
from imitate.errors import DatasetError, EnvError
from imitate.system.plain_files import json_value
from imitate.system.processes import STEP_TIMEOUT_S
from imitate.system.recognition import INDEX_NAME
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


PLAN = "collected"
"""Attribute of ``data``: the plan of the demonstrations, as JSON."""


@dataclass(frozen=True)
class RecordedEpisode:
    """An episode in the file of an interrupted collection.

    Attributes:
        name: name of the demo.
        episode: number of the episode in the plan.
        quality: quality level of its demonstrator.
        success: true if it solves the task, None if that is unknown.
        attempts: number of the demonstrator's attempts, including this one.
        steps: number of control steps.
    """

    name: str
    episode: int
    quality: str
    success: bool | None
    attempts: int
    steps: int


def settings_of(plan: Plan, **more: int) -> str:
    """Return all settings that the episodes depend on, as JSON.

    Args:
        plan: plan of the episodes.
        **more: further settings that the files depend on.
    """
    return json.dumps({**asdict(plan), "robosuite": installed_robosuite() or "none", **more})


def recorded_so_far(path: Path, settings: str) -> list[RecordedEpisode]:
    """Return the episodes in the partial file of ``path``; an empty list if there is no such file.

    Raises:
        DatasetError: the file belongs to another plan, or another process writes it.
    """
    partial = partial_of(path)
    if not partial.is_file():
        return []
    if is_being_written(partial):
        raise DatasetError(
            f"{path}: another process is writing it: wait for it or choose another name"
        )
    roll_back(partial)
    if not partial.stat().st_size:  # the collection was killed before its first demo
        partial.unlink()
        return []
    return _read(partial, path, settings)


def recorded_in(path: Path, settings: str) -> list[RecordedEpisode]:
    """Return the episodes of a finished file.

    Raises:
        DatasetError: the file belongs to another plan.
    """
    return _read(path, path, settings)


def _read(place: Path, path: Path, settings: str) -> list[RecordedEpisode]:
    with DatasetFile(place) as file:
        _check_same(place, path, file.file_attrs.get(PLAN), settings)
        return [_recorded(file, demo) for demo in file.demos()]


def _recorded(file: DatasetFile, demo: str) -> RecordedEpisode:
    attrs = file.attrs(demo)
    return RecordedEpisode(
        demo,
        int(attrs["episode"]),
        str(attrs["quality"]),
        bool(attrs["success"]) if "success" in attrs else None,
        int(attrs["attempts"]),
        file.length(demo),
    )


def _check_same(place: Path, path: Path, found: str | None, wanted: str) -> None:
    if found is None:
        raise DatasetError(
            f"{place}: the file does not contain the settings of its collection, so it cannot be resumed: keep its "
            f"demos with `imitate dataset finish {path}`, or start again with --overwrite"
        )
    was, now = json_value(found), json_value(wanted)
    for key in sorted(was.keys() | now.keys()):
        if was.get(key) != now.get(key):
            raise DatasetError(
                f"{place}: the collection was started with {key} = {was.get(key)!r}, but now {key} is "
                f"{now.get(key)!r}: resume with the same options, or start again with --overwrite"
            )


Split = Callable[[Mapping[int, str]], Mapping[str, Sequence[int]]]
"""Function that chooses the episode numbers of each filter key from the quality level of each episode."""


@dataclass(frozen=True)
class CollectedFile:
    """One file of a collection and its episodes.

    Attributes:
        path: path of the file.
        episodes: numbers of the episodes in it.
    """

    path: Path
    episodes: range


class CollectedFiles:
    """Context manager that writes a collection's demos into files, in the order of their episodes.

    After an exception or a kill -9 the finished files and a partial file with complete demos remain.

    Args:
        pieces: the files, in the order of their episodes.
        settings: all settings that the demos depend on, as JSON; files with other settings are not continued.
        split: function that chooses the episodes of each filter key.
        qualities: quality level of every planned episode, from which filter keys are chosen; None chooses the filter
            keys of each file from its recorded episodes.
        overwrite: true to replace existing files.
        resume: true to continue existing files.

    Attributes:
        missing: numbers of the episodes to record.
        earlier: demos that were recorded before, in order.
        lost: numbers of the episodes that an interrupted collection could not record.

    Raises:
        DatasetError: a file exists and neither ``overwrite`` nor ``resume`` is set, or its settings differ.
    """

    def __init__(
        self,
        pieces: Sequence[CollectedFile],
        settings: str,
        split: Split,
        *,
        qualities: Mapping[int, str] | None = None,
        overwrite: bool = False,
        resume: bool = False,
    ) -> None:
        self._settings, self._split, self._qualities = settings, split, qualities
        self._overwrite = overwrite
        self.missing: list[int] = []
        self.earlier: list[RecordedEpisode] = []
        self.lost: list[int] = []
        self._unfinished: list[CollectedFile] = []
        for piece in pieces:
            self._look_at(piece, resume=resume, may_be_whole=len(pieces) > 1)
        self._recorded = {demo.episode: (demo.name, demo.quality) for demo in self.earlier}
        self._order = sorted(self._recorded)
        self._added = 0
        self._env_meta: dict[str, Any] = {}
        self._writer: DatasetWriter | None = None

    def _look_at(self, piece: CollectedFile, *, resume: bool, may_be_whole: bool) -> None:
        """Note which episodes of a file exist and which are missing."""
        may_continue = resume and not self._overwrite and piece.path.exists()
        is_whole = may_continue and (may_be_whole or self._holds_last(piece))
        if not is_whole:
            check_free(piece.path, overwrite=self._overwrite, resume=resume)
            self._unfinished.append(piece)
        find = recorded_in if is_whole else recorded_so_far
        found = find(piece.path, self._settings) if resume else []
        there = {demo.episode for demo in found}
        begun = (
            piece.episodes.stop if is_whole else max(there, default=piece.episodes.start - 1) + 1
        )
        self.lost += sorted(set(range(piece.episodes.start, begun)) - there)
        self.missing += range(begun, piece.episodes.stop)
        self.earlier += found

    def _holds_last(self, piece: CollectedFile) -> bool:
        """Return True if a finished file contains the last episode.

        The settings of a single file do not contain the number of episodes, so only its episodes tell whether it is
        complete.
        """
        try:
            found = recorded_in(piece.path, self._settings)
        except DatasetError:  # another file
            return False
        return max((demo.episode for demo in found), default=-1) == piece.episodes.stop - 1

    @property
    def are_finished(self) -> bool:
        """True if all files are complete."""
        return not self._unfinished

    def begin(self, env_meta: dict[str, Any]) -> None:
        """Open the first file that is not finished.

        Args:
            env_meta: env_args of the demos.

        Raises:
            DatasetError: the file cannot be written.
        """
        self._env_meta = env_meta
        self._next_piece()

    def add(self, number: int, quality: str, episode: Episode) -> None:
        """Write the demo of an episode; it is on disk when the method returns.

        Args:
            number: number of the episode, one of ``missing``, in ascending order from call to call.
            quality: quality level of its demonstrator.
            episode: arrays of the episode.

        Raises:
            DatasetError: the file cannot be written.
        """
        while number not in self._unfinished[0].episodes:
            self._finish_piece()
            self._next_piece()
        assert self._writer is not None
        name = f"demo_{bisect_left(self._order, number) + self._added}"
        self._writer.append_episode(episode, name)
        self._recorded[number] = (name, quality)
        self._added += 1

    def _next_piece(self) -> None:
        """Open the first unfinished file, if there is one."""
        if not self._unfinished:
            return
        path = self._unfinished[0].path
        self._writer = DatasetWriter(
            path,
            self._env_meta,
            overwrite=self._overwrite,
            append=partial_of(path).exists() and not self._overwrite,
            control_freq=_rate_hz(self._env_meta),
            attrs={PLAN: self._settings},
            strict=False,
        )

    def _finish_piece(self) -> None:
        """Write the filter keys of the open file and give the file its final name; remove a file without demos."""
        piece, writer = self._unfinished.pop(0), self._writer
        assert writer is not None
        if not writer.num_episodes and self._recorded:
            with suppress(
                DatasetError
            ):  # without a demo, close() raises this error and removes the file
                writer.close()
            return
        own = {
            number: self._recorded[number] for number in piece.episodes if number in self._recorded
        }
        qualities = self._qualities or {number: quality for number, (_, quality) in own.items()}
        for key, numbers in self._split(qualities).items():
            names = [own[number][0] for number in numbers if number in own]
            if names:
                writer.add_filter_key(key, names)
        writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        if kind is not None:
            if self._writer is not None:
                self._writer.__exit__(kind, *error)
            return
        while self._unfinished:
            self._finish_piece()
            self._next_piece()


def check_free(path: Path, *, overwrite: bool, resume: bool) -> None:
    """Raise DatasetError if a file exists that may be neither overwritten nor resumed.

    Raises:
        DatasetError: the file or its partial file exists, or both options are set.
    """
    if overwrite and resume:
        raise DatasetError(
            f"{path}: --resume continues the existing file, --overwrite starts again: give only one of them"
        )
    if path.exists() and not overwrite:
        raise DatasetError(
            f"{path}: exists already; choose another name, or replace it with --overwrite"
        )
    if partial_of(path).exists() and not (overwrite or resume):
        raise DatasetError(
            f"{partial_of(path)}: the file is left from an interrupted collection: --resume continues it, --overwrite "
            "starts again"
        )


def _rate_hz(env_meta: Mapping[str, Any]) -> float | None:
    """Return the control rate of an environment in Hz; None if unknown."""
    rate: float | None = env_meta.get("env_kwargs", {}).get("control_freq")
    if rate is None:
        name = str(env_meta["env_name"])
        rate = next((hz for start, hz in RATES_HZ.items() if name.startswith(start)), None)
    return rate


def shards_of(folder: Path, num: int, per_shard: int) -> list[CollectedFile]:
    """Divide a collection into the files ``000.hdf5``, ``001.hdf5`` ... of a folder.

    Args:
        folder: folder of the files.
        num: number of episodes.
        per_shard: number of episodes in each file except the last.
    """
    starts = range(0, num, per_shard)
    width = max(3, len(str(len(starts) - 1)))
    return [
        CollectedFile(
            folder / f"{number:0{width}d}.hdf5", range(first, min(first + per_shard, num))
        )
        for number, first in enumerate(starts)
    ]


def prepare_folder(
    folder: Path, pieces: Sequence[CollectedFile], *, overwrite: bool, resume: bool
) -> None:
    """Check that the shards can be written into a folder, and remove the index, which marks a complete folder.

    Raises:
        DatasetError: the path is a file, or the folder contains other HDF5 files, or shards without ``overwrite`` or
            ``resume``.
    """
    if folder.exists() and not folder.is_dir():
        raise DatasetError(
            f"{folder}: --shard-demos writes a folder, but this is a file: name a folder with --out"
        )
    own = {piece.path.name for piece in pieces}
    there = sorted(path.name for path in folder.glob("*.hdf5"))
    foreign = [name for name in there if name not in own]
    if foreign:
        raise DatasetError(
            f"{folder}: contains {foreign[0]}, which is none of the {len(pieces)} shards: choose an empty folder, or "
            "give the options of the collection in it"
        )
    if there and not (overwrite or resume):
        raise DatasetError(
            f"{folder}: contains {there[0]}: --resume continues the collection in the folder, --overwrite starts again"
        )
    if overwrite or any(not piece.path.exists() for piece in pieces):
        (folder / INDEX_NAME).unlink(missing_ok=True)


def finish_folder(folder: Path, pieces: Sequence[CollectedFile]) -> None:
    """Write the index of the shards; a shard of which no episode was recorded does not exist and is left out."""
    from imitate.data.shards.index import write_index  # late: most collections need no index

    if not (folder / INDEX_NAME).exists():
        write_index(folder, [piece.path for piece in pieces if piece.path.exists()])
