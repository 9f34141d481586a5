"""Mean, standard deviation, minimum and maximum of each array of a file."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.batches.statistics import KeyStats, statistics_of
from imitate.data.dataset_file import DatasetFile
from imitate.data.file.extents import Extent, Extents
from imitate.data.shards.folder import ShardFolder
from imitate.errors import DatasetError, nearest

_PIECE_BYTES = 2 * 2**20
_WIDE = 512  # narrow rows are joined into rows of about this many columns
_WIDE_ROWS = 64  # number of joined rows that are processed at once


def summarize(
    path: Path,
    *,
    filter_key: str | None = None,
    keys: list[str] | None = None,
    on_key: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, KeyStats]:
    """Compute statistics over all steps, with the shape of one step; for images per channel, in stored units.

    Args:
        path: the file.
        filter_key: mask of the demos to use; None for all demos.
        keys: names of the arrays to use; None for actions, rewards and observations.
        on_key: called with the number of processed arrays and the number of all arrays.
    """
    with DatasetFile(path) as file, Extents(file) as extents:
        demos = file.demos(filter_key)
        if not demos:
            raise DatasetError(f"{path}: there is no demo to compute statistics of")
        if not any(file.length(demo) for demo in demos):
            raise DatasetError(f"{path}: no demo has a step to compute statistics of")
        wanted = keys or [
            key
            for key in file.keys(demos[0])
            if key in ("actions", "rewards") or key.startswith(("obs/", "action_dict/"))
        ]
        found = {}
        for number, key in enumerate(wanted, 1):
            found[key] = key_statistics(extents, demos, key)
            on_key(number, len(wanted))
        return found


def summarize_shards(
    shards: ShardFolder, *, filter_key: str | None = None, keys: list[str] | None = None
) -> dict[str, KeyStats]:
    """Return the statistics in the index of a folder of shards, like :func:`summarize` for a file.

    Statistics of images are computed from some frames of each shard.

    Raises:
        DatasetError: no shard has the filter key, or the index has no statistics of an array.
    """
    if filter_key is not None:
        shards.index.check_filter_key(filter_key, shards.place)
    known = shards.index.statistics(filter_key)
    for key in keys or ():
        if key not in known:
            raise DatasetError(
                f"{shards.place}: the index has no statistics of '{key}'; {nearest(key, known)}"
            )
    found = {}
    for key in keys or known:
        form, moments = shards.index.arrays[key], known[key]
        scale = 255.0 if len(form.shape) == 3 else 1.0
        std = np.sqrt(moments.m2 / moments.count)
        found[key] = KeyStats(
            scale * moments.mean, scale * std, scale * moments.min, scale * moments.max
        )
    return found


def key_statistics(extents: Extents, demos: Sequence[str], key: str) -> KeyStats:
    """Compute statistics of an array over all steps, with the shape of one step.

    For images they are per channel, in stored units.

    Raises:
        DatasetError: a demo does not have the array, its shape differs, or it is not numeric.
    """
    first = _extent(extents, demos[0], key)
    step, dtype = first.shape[1:], first.dtype
    is_image = len(step) == 3 and key.startswith(("obs/", "next_obs/"))
    pieces = _pieces(extents, demos, key, step)
    if is_image and dtype == np.uint8:
        return _pixel_statistics(pieces, step)
    return _row_statistics(pieces, step[-1] if is_image else max(1, math.prod(step)))


def _extent(extents: Extents, demo: str, key: str) -> Extent:
    found = extents.of(demo).get(key)
    if found is None:
        shape, dtype = (
            extents.file.shape(demo, key),
            extents.file.dtype(demo, key),
        )  # raises an error that names the missing array
        return Extent(shape, dtype, None)
    return found


def _pieces(
    extents: Extents, demos: Sequence[str], key: str, step: tuple[int, ...]
) -> Iterator[NDArray[Any]]:
    """Yield the values of all demos, (n, *step), in pieces of a few megabytes."""
    for demo in demos:
        shape, dtype, _ = _extent(extents, demo, key)
        if shape[1:] != step or dtype.kind not in "fiub":
            raise DatasetError(
                f"{extents.file.path}: demo '{demo}': a step of '{key}' is {shape[1:]} {dtype}, but "
                f"{step} in '{demos[0]}': see `imitate dataset doctor`"
            )
        rows = max(1, _PIECE_BYTES // max(1, math.prod(step) * dtype.itemsize))
        for start in range(0, shape[0], rows):
            yield extents.read(demo, key, start, start + rows)


def _pixel_statistics(pieces: Iterator[NDArray[Any]], step: tuple[int, ...]) -> KeyStats:
    """Compute statistics per channel in integers.

    Values are first summed per pixel, because reductions along long rows are fast.
    """
    count = 0
    sums = np.zeros((2, math.prod(step)), dtype=np.uint64)
    low = np.full(math.prod(step), 255, dtype=np.uint8)
    high = np.zeros_like(low)
    for piece in pieces:
        frames = np.asarray(piece).reshape(len(piece), -1)
        count += len(frames)
        sums[0] += frames.sum(axis=0, dtype=np.uint32)
        sums[1] += np.square(frames, dtype=np.uint16).sum(axis=0, dtype=np.uint32)
        np.minimum(low, frames.min(axis=0), out=low)
        np.maximum(high, frames.max(axis=0), out=high)
    channels = step[-1]
    count *= math.prod(step) // channels
    totals = sums.reshape(2, -1, channels).sum(axis=1)
    mean, mean_square = (total.astype(np.float64) / count for total in totals)
    return KeyStats(
        mean,
        np.sqrt(np.maximum(mean_square - mean**2, 0.0)),
        low.reshape(-1, channels).min(axis=0).astype(np.float64),
        high.reshape(-1, channels).max(axis=0).astype(np.float64),
    )


def _row_statistics(pieces: Iterator[NDArray[Any]], width: int) -> KeyStats:
    """Compute statistics per column of rows with ``width`` columns.

    Many rows are joined into one long row, which is several times faster.
    """
    group = max(1, _WIDE // width)
    rest: list[NDArray[Any]] = []
    rows = 0

    def wide() -> Iterator[NDArray[Any]]:
        nonlocal rest, rows
        for piece in pieces:
            rest.append(np.asarray(piece).reshape(-1, width))
            if sum(map(len, rest)) < group * _WIDE_ROWS:
                continue
            values = np.concatenate(rest)
            whole = len(values) // group * group
            rest, rows = [values[whole:]], rows + whole
            yield values[:whole].reshape(-1, group * width)

    chunks = wide()
    first = next(chunks, None)
    parts: list[tuple[int, KeyStats]] = []
    if first is not None:
        bulk = statistics_of(chain([first], chunks))
        parts.append((rows, bulk))  # now all chunks are read, so `rows` is complete
    left = np.concatenate(rest)
    if len(left):
        parts.append((len(left), statistics_of([left])))
    return _joined(parts, width)


def _joined(parts: list[tuple[int, KeyStats]], width: int) -> KeyStats:
    """Combine statistics per column of long rows into statistics per column of the original rows."""
    groups = [stats.mean.size // width for _, stats in parts]
    weights = np.repeat([n / k for (n, _), k in zip(parts, groups, strict=True)], groups)
    means, stds, lows, highs = (
        np.concatenate([getattr(stats, name).reshape(-1, width) for _, stats in parts])
        for name in ("mean", "std", "min", "max")
    )
    weights /= weights.sum()
    mean = weights @ means
    variance = weights @ (stds**2 + (means - mean) ** 2)
    return KeyStats(mean, np.sqrt(variance), lows.min(axis=0), highs.max(axis=0))
