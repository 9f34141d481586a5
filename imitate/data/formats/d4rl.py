"""D4RL's flat files: N rows of ``observations``, ``actions``, ``rewards``, ``terminals``, usually ``timeouts``.

They are HDF5; the same arrays in an ``.npz`` are read in the same way.

Episodes end at ``terminals``, at ``timeouts``, where the demo number in ``infos`` changes (kitchen has such an array),
and, without ``timeouts``, after ``--horizon`` steps.

Inside an episode, the next observation of a row is the following row. At an episode's last row it is the first
available of these: the file's ``next_observations``; the file's ``metadata/episode_final_observation``; at a terminal
the row's own observation, which is not used for bootstrapping; the following row, if the observations show that the run
continues (maze2d's ``timeouts`` mark a reached sub-goal, not a reset). Otherwise the last row is dropped, and the row
before it ends the episode with an exact next observation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from imitate.data.file.episode import Episode
from imitate.data.formats import hdf5_tree
from imitate.data.formats.base import (
    ConversionReport,
    Format,
    NamedDemo,
    OpenedDataset,
    Options,
    clock_of,
    gymnasium_meta,
    same_length,
)
from imitate.data.formats.gym_arrays import action_rows, choices_of, named_obs
from imitate.errors import DatasetError
from imitate.system.memory import read_arrays
from imitate.system.recognition import is_of_d4rl, npz_shapes
from imitate.system.text import counted

SAMPLED_ROWS = 100_000
"""Number of first rows that are examined for jumps."""
# measured on HalfCheetah and Walker2d: at resets some dimension changes 4 to 34 times as much as within episodes
_CONTINUES_BELOW, _FEWEST_TIMEOUTS = 2.0, 5
_JUMP_ABOVE = 50.0


def note_early(lengths: NDArray[np.int64], report: ConversionReport) -> None:
    """Add a note to the report for timeouts that are not caused by a time limit.

    Args:
        lengths: lengths of the episodes that end with a timeout.
        report: receives the notes.
    """
    if lengths.size == 0 or lengths.min() == lengths.max():
        return
    early = int((lengths < lengths.max()).sum())
    report.note(
        f"{early} of {lengths.size} timeouts are before step {lengths.max()}, the longest: there the recording was "
        "cut or a sub-goal reached, without a time limit; they stay timeouts, so values are bootstrapped after them"
    )


def goes_on(
    seen: NDArray[Any],
    ends: NDArray[np.bool_],
    by_clock: NDArray[np.bool_],
    report: ConversionReport,
) -> bool:
    """Return true if the recording continues after timeouts; report jumps inside episodes.

    Args:
        seen: (n, ...) the first observations of the file.
        ends: (N,) true at the last row of each episode.
        by_clock: (N,) true at timeouts.
        report: receives the notes.
    """
    count = len(seen)
    change = np.abs(np.diff(seen.reshape(count, -1).astype(np.float64), axis=0))
    inside = ~ends[: count - 1]
    if not inside.any():
        return False
    _note_jumps(change, inside, report)
    usual = change[inside].mean(axis=0)
    moving = usual > 0
    at_timeouts = change[by_clock[: count - 1]]
    if len(at_timeouts) < _FEWEST_TIMEOUTS or not moving.any():
        return False
    if (at_timeouts.mean(axis=0)[moving] / usual[moving]).max() > _CONTINUES_BELOW:
        return False
    report.note(
        f"the recording continues after its {len(at_timeouts)} timeouts (the observation does not jump), so they mark "
        "sub-goals or cuts, not resets: the row after a timeout is used as its next observation"
    )
    return True


def _note_jumps(change: NDArray[Any], inside: NDArray[np.bool_], report: ConversionReport) -> None:
    usual = np.sqrt(np.mean(change[inside] ** 2, axis=0))
    jump = (change / np.where(usual > 0, usual, np.inf)).max(axis=1)
    ordinary = float(np.median(jump[inside]))
    far = np.flatnonzero(inside & (jump > _JUMP_ABOVE * max(ordinary, 1e-12)))
    if far.size:
        report.note(
            f"{far.size} rows inside episodes jump more than {_JUMP_ABOVE:.0f} times as far as usual, the first after "
            f"row {far[0]}: resets without a flag? look at them before training"
        )


_FLAT = ("observations", "actions", "rewards", "terminals")
_MAIN = (*_FLAT, "timeouts", "next_observations", "episode_terminals")
_FINAL = "metadata/episode_final_observation"


def _recognises(path: Path) -> bool:
    if path.is_file() and is_of_d4rl(path):
        return True
    with hdf5_tree.peeked(path) as file:
        return "data" not in file and {"observations", "actions", "rewards", "terminals"} <= set(
            file
        )


@contextmanager
def _read(path: Path, options: Options, report: ConversionReport) -> Iterator[OpenedDataset]:
    with _in_memory(path) if is_of_d4rl(path) else hdf5_tree.opened(path) as file:
        yield open_flat(file, path, options, report)


@contextmanager
def _in_memory(path: Path) -> Iterator[h5py.File]:
    """Open the arrays of an ``.npz`` as an HDF5 file in memory; without a backing store nothing is written."""
    arrays = read_arrays(path, npz_shapes(path))
    with h5py.File(path, "w", driver="core", backing_store=False) as file:
        for name, values in arrays.items():
            file[name] = values
        yield file


def open_flat(
    file: h5py.File, path: Path, options: Options, report: ConversionReport
) -> OpenedDataset:
    """Open the dataset of a file with flat arrays."""
    attrs = hdf5_tree.attributes(file)
    env_id = options.env or hdf5_tree.texts(attrs, "env_id", "env_name")
    flat = _Flat.of(file, path, report)
    ends = _ends(flat, clock_of(options, env_id), report)
    plan = _Plan.of(flat, ends, report)
    return OpenedDataset(
        env_meta=gymnasium_meta(env_id, report),
        demos=_demos(flat, plan, report),
        count=len(plan.bounds) - 1,
        attrs={key: value for key, value in attrs.items() if isinstance(value, str | int | float)},
    )


@dataclass(frozen=True)
class _Flat:
    """Arrays of a file.

    Attributes:
        rows: arrays with one row per step, which are not yet read.
        per_episode: small arrays below ``metadata``, with one row per episode or another shape.
        terminals: (N,) as stored in the file.
        timeouts: (N,) as stored in the file, or None.
        path: path of the file.
    """

    rows: dict[str, h5py.Dataset]
    per_episode: dict[str, NDArray[Any]]
    terminals: NDArray[np.bool_]
    timeouts: NDArray[np.bool_] | None
    path: Path

    @property
    def length(self) -> int:
        return len(self.terminals)

    @staticmethod
    def of(file: h5py.File, path: Path, report: ConversionReport) -> _Flat:
        for key in _FLAT:
            hdf5_tree.wanted(file, key, str(path))
        leaves = hdf5_tree.leaves(file)
        length = same_length({key: len(leaves[key]) for key in _MAIN if key in leaves}, str(path))
        if length == 0:
            raise DatasetError(f"{path}: has no row")
        rows, per_episode = {}, {}
        for key, dataset in leaves.items():
            numbers = dataset.dtype.kind in "fiub"
            if numbers and dataset.shape and len(dataset) == length:
                rows[key] = dataset
            elif numbers and key.startswith("metadata/episode_") and dataset.ndim in (1, 2):
                per_episode[key] = hdf5_tree.rows(dataset)
            else:
                report.dropped[key] = f"shape {dataset.shape}: one value per file"
        flags = {
            key: hdf5_tree.rows(rows[key]).reshape(-1).astype(bool)
            for key in ("terminals", "timeouts", "episode_terminals")
            if key in rows
        }
        if "episode_terminals" in flags and "timeouts" not in flags:
            report.renamed["episode_terminals"] = "timeouts, where they are not terminals"
            flags["timeouts"] = flags["episode_terminals"] & ~flags["terminals"]
        return _Flat(rows, per_episode, flags["terminals"], flags.get("timeouts"), path)


def _ends(flat: _Flat, clock: int | None, report: ConversionReport) -> NDArray[np.bool_]:
    """Return a mask (N,) that is true at the last row of each episode."""
    ends = flat.terminals.copy()
    if flat.timeouts is not None:
        ends |= flat.timeouts
        both = int((flat.terminals & flat.timeouts).sum())
        if both:
            report.note(f"{both} rows are terminals and timeouts at once: they count as terminals")
    numbers = flat.rows.get("infos")
    if numbers is not None and numbers.ndim == 1:
        number = hdf5_tree.rows(numbers)
        ends[:-1] |= number[1:] != number[:-1]
        report.note("episodes end where the demo number in 'infos' changes")
    if flat.timeouts is None:
        _cut_by_clock(ends, clock, report)
    if not ends[-1]:
        report.note("the last episode of the file has no end: it counts as a timeout")
    ends[-1] = True
    return ends


def _cut_by_clock(ends: NDArray[np.bool_], clock: int | None, report: ConversionReport) -> None:
    if clock is None:
        report.note(
            "the file has no 'timeouts': episodes end at terminals only; give --horizon or --env if "
            "a time limit ended some"
        )
        return
    since, cut = 0, 0
    for row in range(len(ends)):
        since += 1
        if ends[row]:
            since = 0
        elif since == clock:
            ends[row], since, cut = True, 0, cut + 1
    report.synthesised["timeouts"] = (
        f"{counted(cut, 'episode')} end{'s' if cut == 1 else ''} after {counted(clock, 'step')}: "
        "the file has no 'timeouts'"
    )


@dataclass(frozen=True)
class _Plan:
    """Division of the rows into episodes.

    Attributes:
        bounds: (E + 1,) first row of each episode, and N.
        final: last next observation of each episode; None if unknown, so that the last row is dropped unless it is
            terminal.
        goes_on: true if the row after an episode's last row is the next observation of this last row.
    """

    bounds: NDArray[np.int64]
    final: NDArray[Any] | None
    goes_on: bool

    @staticmethod
    def of(flat: _Flat, ends: NDArray[np.bool_], report: ConversionReport) -> _Plan:
        bounds = np.concatenate([[0], np.flatnonzero(ends) + 1])
        final = flat.per_episode.get(_FINAL)
        if final is not None and len(final) != len(bounds) - 1:
            report.dropped[_FINAL] = f"{len(final)} rows for {len(bounds) - 1} episodes"
            final = None
        by_clock = np.zeros(flat.length, dtype=bool)
        if flat.timeouts is not None:
            by_clock = flat.timeouts & ~flat.terminals
            note_early(np.diff(bounds)[by_clock[bounds[1:] - 1]], report)
        seen = hdf5_tree.rows(flat.rows["observations"], 0, SAMPLED_ROWS)
        return _Plan(bounds, final, goes_on(seen, ends, by_clock, report))


def _demos(flat: _Flat, plan: _Plan, report: ConversionReport) -> Iterator[NamedDemo]:
    extra = [name for name in flat.rows if name not in _MAIN]
    _describe(flat, plan, extra, report)
    choices = choices_of(_discrete(flat.rows["actions"]), f"{flat.path}: 'actions'")
    cut = 0
    for number, (start, stop) in enumerate(zip(plan.bounds[:-1], plan.bounds[1:], strict=True)):
        obs = hdf5_tree.rows(flat.rows["observations"], start, stop)
        after = _after_last(flat, plan, number, stop)
        if after is None:
            report.dropped["last rows at timeouts"] = (
                f"{cut + 1} rows: their next observation is not in the file"
            )
            cut, stop = cut + 1, stop - 1
            after, obs = obs[-1], obs[:-1]
            if len(obs) == 0:
                report.note(f"episode {number} had a single row and is left out")
                continue
        terminal = np.zeros(stop - start, dtype=bool)
        terminal[-1] = flat.terminals[stop - 1]
        timeout = np.zeros(stop - start, dtype=bool)
        timeout[-1] = not terminal[-1]
        following = _next_obs(flat, obs, after, start, stop)
        key, obs = named_obs(obs, "observations", report)
        _, following = named_obs(following, "next_observations", ConversionReport())
        if "next_observations" in flat.rows:
            report.renamed["next_observations"] = f"next_obs/{key}"
        actions = hdf5_tree.rows(flat.rows["actions"], start, stop)
        yield NamedDemo(
            f"demo_{number}",
            Episode(
                obs={key: obs},
                next_obs={key: following},
                actions=action_rows(actions, choices, report),
                rewards=hdf5_tree.rows(flat.rows["rewards"], start, stop).reshape(-1),
                terminals=terminal,
                timeouts=timeout,
                attrs=_attrs(flat.per_episode, number, len(plan.bounds) - 1),
                steps={name: hdf5_tree.rows(flat.rows[name], start, stop) for name in extra},
            ),
        )


def _discrete(actions: h5py.Dataset) -> NDArray[Any]:
    """Return all actions if they may be indices, else an empty array."""
    stop = None if actions.dtype.kind in "iub" and actions.size == len(actions) else 0
    return hdf5_tree.rows(actions, 0, stop)


def _after_last(flat: _Flat, plan: _Plan, number: int, stop: int) -> NDArray[Any] | None:
    """Return the observation after an episode's last row, or None if unknown."""
    if "next_observations" in flat.rows:
        return _row(flat, "next_observations", stop - 1)
    if plan.final is not None:
        last: NDArray[Any] = plan.final[number]
        return last
    if flat.terminals[stop - 1]:
        return _row(flat, "observations", stop - 1)
    if plan.goes_on and stop < flat.length:
        return _row(flat, "observations", stop)
    return None


def _row(flat: _Flat, key: str, row: int) -> NDArray[Any]:
    values: NDArray[Any] = hdf5_tree.rows(flat.rows[key], row, row + 1)[0]
    return values


def _next_obs(
    flat: _Flat, obs: NDArray[Any], after: NDArray[Any], start: int, stop: int
) -> NDArray[Any]:
    if "next_observations" in flat.rows:
        return hdf5_tree.rows(flat.rows["next_observations"], start, stop)
    return np.concatenate([obs[1:], after[None].astype(obs.dtype)])


def _attrs(
    per_episode: Mapping[str, NDArray[Any]], number: int, count: int
) -> dict[str, float | int]:
    return {
        key.removeprefix("metadata/"): values[number].item()
        for key, values in per_episode.items()
        if key != _FINAL and values.ndim == 1 and len(values) == count
    }


def _describe(flat: _Flat, plan: _Plan, extra: list[str], report: ConversionReport) -> None:
    report.keep("actions", "rewards", "terminals", *extra)
    if "timeouts" in flat.rows:
        report.keep("timeouts")
    for name, values in flat.per_episode.items():
        if name != _FINAL and len(values) == len(plan.bounds) - 1:
            report.renamed[name] = f"attribute {name.removeprefix('metadata/')}"
    if "next_observations" not in flat.rows:
        last = _FINAL if plan.final is not None else "at a terminal, the row's own observation"
        report.synthesised["next_obs"] = f"the following row; at an episode's end: {last}"


FORMAT = Format(
    name="d4rl",
    summary="D4RL's flat arrays (HDF5, .npz)",
    recognises=_recognises,
    read=_read,
    options=frozenset({"env", "horizon"}),
)
