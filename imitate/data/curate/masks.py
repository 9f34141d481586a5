"""Filter keys: the split into training and validation, and masks by condition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np

from imitate.data.curate.rewrite import read_masks, write_masks
from imitate.data.curate.selection import Selection, select
from imitate.data.curate.target import Target
from imitate.data.hdf5_format import DatasetFile, natural_key
from imitate.errors import DatasetError

_MB = 10**6
_PIECE_BYTES = 16 * 2**20
Progress = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    """No progress is shown."""


def split(
    source: Path,
    target: Target,
    *,
    ratio: float,
    seed: int = 0,
    filter_key: str | None = None,
    on_mb: Progress = _silent,
) -> dict[str, list[str]]:
    """Write the masks ``train`` and ``valid``; or ``<filter_key>_train`` and ``<filter_key>_valid``.

    Args:
        source: the file to copy.
        target: the copy.
        ratio: share of the demos that validate, in (0, 1); at least one demo on either side.
        seed: of the draw.
        filter_key: split the demos of this mask; None: all.
        on_mb: called with how many megabytes are copied, and how many there are.

    Returns:
        the two masks.
    """
    with DatasetFile(source) as file:
        names = file.demos(filter_key)
        masks = read_masks(file)
    if len(names) < 2:
        raise DatasetError(f"{source}: {len(names)} demo cannot be split: two are needed")
    if not 0 < ratio < 1:
        raise DatasetError(
            f"{source}: ratio {ratio:g} is no share: wanted a number between 0 and 1"
        )
    count = min(max(1, round(ratio * len(names))), len(names) - 1)
    order = np.random.default_rng(seed).permutation(len(names))
    prefix = "" if filter_key is None else f"{filter_key}_"
    chosen = {
        f"{prefix}train": sorted((names[i] for i in order[count:]), key=natural_key),
        f"{prefix}valid": sorted((names[i] for i in order[:count]), key=natural_key),
    }
    _copy_with(source, target, {**masks, **chosen}, on_mb)
    return chosen


def add_filter_key(
    source: Path, target: Target, name: str, selection: Selection, on_mb: Progress = _silent
) -> list[str]:
    """Write the mask ``name``: the demos that a selection takes. One of the same name is replaced.

    Returns:
        the demos.
    """
    if not name or "/" in name or name == ".":
        raise DatasetError(f"{source}: '{name}' is no name of a filter key: it has no '/'")
    with DatasetFile(source) as file:
        chosen = select(file, selection)
        masks = read_masks(file)
    if not chosen:
        raise DatasetError(
            f"{source}: no demo fulfils the conditions: the filter key '{name}' would be empty"
        )
    _copy_with(source, target, {**masks, name: chosen}, on_mb)
    return chosen


def _copy_with(
    source: Path, target: Target, masks: Mapping[str, Sequence[str]], on_mb: Progress
) -> None:
    """The file, byte for byte, with other masks."""
    with target.writing() as part:
        _copy(source, part, on_mb)
        with h5py.File(part, "r+") as new:
            write_masks(new, masks)


def _copy(source: Path, part: Path, on_mb: Progress) -> None:
    total = source.stat().st_size // _MB
    with source.open("rb") as old, part.open("wb") as new:
        while piece := old.read(_PIECE_BYTES):
            new.write(piece)
            on_mb(new.tell() // _MB, total)
