"""Index entries, read from the files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from imitate.config.data_paths import INDEX_NAME
from imitate.data.dataset_file import DatasetFile
from imitate.data.download.download import sha256_of
from imitate.data.file.extents import Extents
from imitate.data.file.faults import check_finite, check_length
from imitate.data.language import TASK_ATTRS, instruction_of
from imitate.data.shards.index import (
    ALL,
    ArrayForm,
    DescribedShard,
    Moments,
    Shard,
    ShardIndex,
    Statistics,
)
from imitate.errors import DatasetError
from imitate.system.plain_files import write_text

_FRAMES = 64
"""Number of evenly spread frames of a shard for the statistics of images."""


def describe_shard(path: Path) -> DescribedShard:
    """Read a demonstration file and return its entry.

    Raises:
        DatasetError: the file is damaged, has no demo, or contains NaN or infinity.
    """
    with DatasetFile(path) as file, Extents(file) as extents:
        demos = file.demos()
        if not demos:
            raise DatasetError(f"{path}: holds no demo: a shard needs one")
        masks = file.filter_keys()
        forms = _common_forms(extents, demos)
        entry = {
            "file": path.name,
            "bytes": path.stat().st_size,
            "sha256": sha256_of(path),
            "demos": demos,
            "lengths": [check_length(file, demo) for demo in demos],
            "success": [file.success(demo) for demo in demos],
            "language": [instruction_of(file.attrs(demo, TASK_ATTRS)) for demo in demos],
            "filter_keys": masks,
            "statistics": _statistics(extents, demos, masks, forms),
        }
        try:
            shard = Shard.model_validate(entry)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise DatasetError(f"{path}: cannot be a shard: {where}: {first['msg']}") from None
        return DescribedShard(
            shard=shard, arrays=forms, env_args=file.env_meta, control_freq=file.control_freq
        )


def index_of(described: Sequence[DescribedShard]) -> ShardIndex:
    """Make the index of shards.

    Args:
        described: entries in the order of their demos.

    Raises:
        DatasetError: two shards have an array in different forms, or a demo of the same name.
    """
    first = described[0]
    for other in described[1:]:
        for key in sorted(first.arrays.keys() & other.arrays.keys()):
            if not first.arrays[key].fits(other.arrays[key]):
                forms = (other.arrays[key], first.arrays[key])
                here, there = (f"{form.shape} {form.dtype}" for form in forms)
                raise DatasetError(
                    f"{other.shard.file}: a step of '{key}' is {here}, but {there} in {first.shard.file}: write the "
                    "files alike"
                )
    common = set.intersection(*(set(part.arrays) for part in described))
    try:
        return ShardIndex(
            env_args=first.env_args,
            control_freq=first.control_freq,
            arrays={key: form for key, form in first.arrays.items() if key in common},
            shards=[part.shard for part in described],
        )
    except ValidationError as error:
        words = error.errors()[0]["msg"]
        raise DatasetError(f"the shards do not fit together: {words}") from None


def write_index(folder: Path, files: Sequence[Path] | None = None) -> ShardIndex:
    """Write ``index.json`` of a folder of finished demonstration files, atomically.

    Args:
        folder: folder of the shards.
        files: shards in the order of their demos; None: all HDF5 files of the folder, by name.

    Raises:
        DatasetError: there is no shard, or the shards do not fit together.
    """
    files = sorted(folder.glob("*.hdf5")) if files is None else files
    if not files:
        raise DatasetError(f"{folder}: there is no .hdf5 file to index")
    index = index_of([describe_shard(file) for file in files])
    write_text(folder / INDEX_NAME, index.to_json())
    return index


def _common_forms(extents: Extents, demos: Sequence[str]) -> dict[str, ArrayForm]:
    """Return the form of each array that is the same in all demos."""
    common: dict[str, ArrayForm] | None = None
    for demo in demos:
        forms = {
            key: ArrayForm(shape=list(extent.shape[1:]), dtype=str(extent.dtype))
            for key, extent in extents.of(demo).items()
        }
        common = (
            forms
            if common is None
            else {
                key: form for key, form in common.items() if key in forms and form.fits(forms[key])
            }
        )
    return common or {}


def _statistics(
    extents: Extents,
    demos: Sequence[str],
    masks: dict[str, list[str]],
    forms: dict[str, ArrayForm],
) -> dict[str, dict[str, Statistics]]:
    """Compute the statistics of actions, rewards and observations, over all demos and over those of each mask."""
    found: dict[str, dict[str, Statistics]] = {name: {} for name in (ALL, *masks)}
    for key, form in forms.items():
        if not _is_measured(key, form):
            continue
        rows = _frames if len(form.shape) == 3 else _vectors
        of_demo = {demo: Moments.of(values) for demo, values in rows(extents, demos, key)}
        for name, members in ((ALL, demos), *masks.items()):
            parts = [of_demo[demo] for demo in members if demo in of_demo]
            if parts:
                found[name][key] = Statistics.of(Moments.merged(parts))
    return found


def _is_measured(key: str, form: ArrayForm) -> bool:
    dtype = form.type
    if key.startswith("obs/") and len(form.shape) == 3:
        return dtype == np.uint8
    known = key in ("actions", "rewards") or key.startswith(("obs/", "action_dict/"))
    return known and len(form.shape) <= 1 and dtype.kind in "fiub" and 0 not in form.shape


def _vectors(
    extents: Extents, demos: Sequence[str], key: str
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield each demo with its values (T, D)."""
    for demo in demos:
        length = extents.of(demo)[key].shape[0]
        if not length:
            continue
        values = extents.read(demo, key, 0, length)
        check_finite(values, extents.file, demo, key, 0)
        yield demo, values.reshape(length, -1)


def _frames(extents: Extents, demos: Sequence[str], key: str) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield demos with the pixels (n, C) of some of their frames, in [0, 1]."""
    lengths = [extents.of(demo)[key].shape[0] for demo in demos]
    ends = np.cumsum(lengths)
    steps = np.linspace(0, ends[-1] - 1, min(_FRAMES, int(ends[-1]))).round().astype(np.int64)
    for demo, length, end in zip(demos, lengths, ends.tolist(), strict=True):
        own = steps[(steps >= end - length) & (steps < end)] - (end - length)
        if len(own):
            frames = np.concatenate([extents.read(demo, key, int(i), int(i) + 1) for i in own])
            yield demo, frames.reshape(-1, math.prod(frames.shape[3:])) / 255.0
