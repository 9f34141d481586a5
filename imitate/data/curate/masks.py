"""Filter keys: the split into training and validation demos, and masks by condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from imitate.data.curate.rewrite import put_mask
from imitate.data.curate.selection import Selection, select, solved
from imitate.data.curate.small_change import Progress, change
from imitate.data.curate.target import Target
from imitate.data.dataset_file import DatasetFile
from imitate.data.file.confined import ConfinedFile
from imitate.data.file.hdf5_format import DemoFile, natural_key
from imitate.errors import DatasetError

Masks = dict[str, list[str]]


def _silent(done: int, total: int) -> None:
    """Ignore the progress."""


def split(
    source: Path,
    target: Target,
    *,
    ratio: float,
    seed: int = 0,
    filter_key: str | None = None,
    success: bool | None = None,
    overwrite: bool = False,
    on_mb: Progress = _silent,
) -> Masks:
    """Write the masks ``train`` and ``valid``; or ``<filter_key>_train`` and ``<filter_key>_valid``.

    Args:
        source: the file.
        target: a copy, or the file itself, of which only the masks are changed.
        ratio: fraction of validation demos, in (0, 1); each side gets at least one demo.
        seed: seed of the random split.
        filter_key: split the demos of this mask; None: all.
        success: split only the demos that solve their task (True) or fail (False); the others are in neither mask.
        overwrite: replace masks of these names.
        on_mb: called with the number of copied megabytes and the number of all megabytes.

    Returns:
        the two masks.

    Raises:
        DatasetError: there are too few demos, or masks of these names with other demos exist.
    """
    if not 0 < ratio < 1:
        raise DatasetError(f"{source}: ratio is {ratio:g}: expected a number between 0 and 1")
    with DatasetFile(source) as file:
        names = file.demos(filter_key)
        if success is not None:
            names = [name for name in names if solved(file, name) == success]
        if len(names) < 2:
            raise DatasetError(f"{source}: {len(names)} demo cannot be split: two are needed")
        count = min(max(1, round(ratio * len(names))), len(names) - 1)
        order = np.random.default_rng(seed).permutation(len(names))
        prefix = "" if filter_key is None else f"{filter_key}_"
        chosen = {
            f"{prefix}train": sorted((names[i] for i in order[count:]), key=natural_key),
            f"{prefix}valid": sorted((names[i] for i in order[:count]), key=natural_key),
        }
        _check(file, chosen, overwrite)
    _write(source, target, chosen, on_mb)
    return chosen


def add_filter_key(
    source: Path,
    target: Target,
    name: str,
    selection: Selection,
    *,
    overwrite: bool = False,
    on_mb: Progress = _silent,
) -> list[str]:
    """Write the mask ``name`` with the demos that fulfil the conditions.

    Args:
        source: the file.
        target: a copy, or the file itself, of which only the masks are changed.
        name: name of the mask.
        selection: conditions for the demos.
        overwrite: replace a mask of this name.
        on_mb: called with the number of copied megabytes and the number of all megabytes.

    Returns:
        names of the demos.

    Raises:
        DatasetError: no demo fulfils the conditions, or a mask of this name with other demos exists.
    """
    if not name or "/" in name or name == ".":
        raise DatasetError(
            f"{source}: '{name}' is not a valid name of a filter key: it must not contain '/'"
        )
    with DatasetFile(source) as file:
        chosen = select(file, selection)
        if not chosen:
            raise DatasetError(
                f"{source}: no demo fulfils the conditions: the filter key '{name}' would be empty"
            )
        _check(file, {name: chosen}, overwrite)
    _write(source, target, {name: chosen}, on_mb)
    return chosen


def failures_among(path: Path, demos: Sequence[str]) -> int:
    """Count the failed demos, by their attribute ``success``."""
    with DatasetFile(path) as file:
        return sum(file.success(demo) is False for demo in demos)


def _check(file: DemoFile, chosen: Mapping[str, Sequence[str]], overwrite: bool) -> None:
    """Refuse to replace masks without ``overwrite``, and to write into a file with links to other files."""
    file.check_confined()
    there = file.filter_keys()
    changed = [name for name, demos in chosen.items() if there.get(name, demos) != demos]
    if changed and not overwrite:
        old = ", ".join(f"{name} {len(there[name])}" for name in chosen if name in there)
        new = ", ".join(f"{name} {len(demos)}" for name, demos in chosen.items())
        raise DatasetError(
            f"{file.path}: there are filter keys of this name already ({old} demos), and this would write {new}: "
            "train on those that are there, or replace them with --overwrite"
        )


def _write(
    source: Path, target: Target, chosen: Mapping[str, Sequence[str]], on_mb: Progress
) -> None:
    change(source, target, partial(_put, chosen=chosen), on_mb)


def _put(file: ConfinedFile, chosen: Mapping[str, Sequence[str]]) -> None:
    for name, demos in chosen.items():
        put_mask(file, name, demos)
