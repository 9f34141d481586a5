"""Features of frozen image encoders, computed once and stored in a file that all processes read.

A cache file contains one row per step of a dataset, float16, in the same layout as in RAM. Its name includes a digest,
made by the caller, of everything that the features depend on. The folder is ``features`` in the cache
(:mod:`imitate.data.file.cache`); the least recently used files are removed if a new one would exceed the cache's limit.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.data.file.cache import cache_folder, limit_bytes, locked, remove_oldest, was_read
from imitate.errors import DatasetError
from imitate.system.free_memory import gigabytes
from imitate.system.progress_bar import ProgressBar

DTYPE = np.dtype(np.float16)
_SPARE_BYTES = 10**9
"""Free disk space in bytes that is not used."""
_ROWS_AT_ONCE = 64

Compute = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""Function from row numbers (M,) to features (M, ...)."""


class NoRoomError(Exception):
    """Error: the cache has no room for the features; the message says why."""


class StoppedError(Exception):
    """Error: the caller asked to stop. Features computed so far are kept, and not computed again."""


def features_folder() -> Path:
    """Return the folder of features."""
    return cache_folder("features")


def features_once(
    name: str,
    count: int,
    shape: tuple[int, ...],
    compute: Compute,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[Tensor, str]:
    """Return the features of all rows. If there is no file, compute them, continuing where an earlier run stopped.

    Args:
        name: name of the file: the observation and the digest.
        count: number of rows N.
        shape: shape of one row.
        compute: computes the features of some rows.
        stopped: returns true if the caller wants to stop.

    Returns:
        (N, *shape) float16, mapped from the file, and a line that names the file.

    Raises:
        NoRoomError: the file cannot be written.
        StoppedError: ``stopped`` became true.
        DatasetError: features exceed the range of float16.
    """
    folder = features_folder()
    size = count * math.prod(shape) * DTYPE.itemsize
    path = folder / f"{name}.features"
    found = _size_of(path) == size
    if not found:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder / f"{name}.partial") as out:
                if _size_of(path) != size:  # true if no other process has made it meanwhile
                    _make_room(path, size, out.seek(0, os.SEEK_END))
                    _compute_rows(name, out, count, shape, compute, stopped)
                    os.replace(out.name, path)
                else:
                    Path(out.name).unlink()
        except OSError as error:
            raise NoRoomError(f"{folder}: {error.strerror or error}") from error
    was_read(path)
    values: NDArray[Any] = np.memmap(path, DTYPE, "c", shape=(count, *shape))
    words = "are read from" if found else "were computed once into"
    return torch.from_numpy(values), f"features {words} {path} ({gigabytes(size)})"


def _compute_rows(
    name: str,
    out: IO[bytes],
    count: int,
    shape: tuple[int, ...],
    compute: Compute,
    stopped: Callable[[], bool],
) -> None:
    """Append the missing rows to the file."""
    row_bytes = math.prod(shape) * DTYPE.itemsize
    done = min(out.seek(0, os.SEEK_END) // row_bytes, count)
    out.truncate(done * row_bytes)
    words = f"features of {name.rpartition('-')[0]}"
    with ProgressBar(
        total=count, initial=done, desc=words, unit=" frames", delay=2, disable=None
    ) as bar:
        for start in range(done, count, _ROWS_AT_ONCE):
            if stopped():
                out.flush()
                raise StoppedError
            rows = np.arange(start, min(start + _ROWS_AT_ONCE, count))
            features = compute(rows)
            if not np.abs(features).max(initial=0) <= np.finfo(DTYPE).max:
                raise DatasetError(
                    f"{words}: values up to {np.abs(features).max():.4g}; float16 holds up to 65504: set "
                    "train.cache_features to false"
                )
            out.write(np.ascontiguousarray(features, DTYPE).data)
            bar.update(len(rows))
    out.flush()
    os.fsync(out.fileno())


def _make_room(path: Path, size: int, done: int) -> None:
    """Remove the least recently used files until ``size`` more bytes fit within the limit.

    A process that has mapped a file can use it until the process ends. Unfinished files of other names are counted too,
    and are removed unless a process is writing them.

    Args:
        path: path of the new file.
        size: size of the new file in bytes.
        done: number of bytes that an earlier run has written.
    """
    folder, limit = path.parent, limit_bytes()
    if size > limit:
        raise NoRoomError(
            f"{gigabytes(size)} exceed the cache's {gigabytes(int(limit))} (IMITATE_CACHE_GB)"
        )
    others = [*folder.glob("*.features"), *folder.glob("*.partial")]
    remove_oldest((file for file in others if file.stem != path.stem), limit - size)
    free = shutil.disk_usage(folder).free
    if free < size - done + _SPARE_BYTES:
        raise NoRoomError(
            f"{folder}: {gigabytes(size - done)} do not fit, {gigabytes(free)} are free; "
            "set IMITATE_CACHE to a folder with room"
        )


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
