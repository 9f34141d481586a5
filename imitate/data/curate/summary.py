"""Mean, standard deviation, smallest and largest value of each array of a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.hdf5_format import DatasetFile
from imitate.data.statistics import KeyStats, statistics_of
from imitate.errors import DatasetError

_PIECE_BYTES = 2 * 2**20
_BATCH_BYTES = 2 * 2**20


def summarize(
    path: Path,
    *,
    filter_key: str | None = None,
    keys: list[str] | None = None,
    on_key: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, KeyStats]:
    """Statistics over all steps, shaped like one step; images per channel, as stored.

    Args:
        path: the file.
        filter_key: only the demos of this mask.
        keys: only these arrays; None: actions, rewards, observations.
        on_key: called with how many arrays are done, and how many there are.
    """
    with DatasetFile(path) as file:
        demos = file.demos(filter_key)
        if not demos:
            raise DatasetError(f"{path}: there is no demo: nothing to count")
        wanted = keys or [
            key
            for key in file.keys(demos[0])
            if key in ("actions", "rewards") or key.startswith(("obs/", "action_dict/"))
        ]
        found = {}
        for number, key in enumerate(wanted, 1):
            found[key] = statistics_of(_pieces(file, demos, key))
            on_key(number, len(wanted))
        return found


def _pieces(file: DatasetFile, demos: list[str], key: str) -> Iterator[NDArray[Any]]:
    """Values of all demos, (n, D) or for images (n, C), in pieces of a few megabytes."""
    step = file.shape(demos[0], key)[1:]
    is_image = len(step) == 3 and key.startswith(("obs/", "next_obs/"))
    width = step[-1] if is_image else max(1, math.prod(step))
    waiting: list[NDArray[Any]] = []
    size = 0
    for demo in demos:
        if file.shape(demo, key)[1:] != step or file.dtype(demo, key).kind not in "fiub":
            raise DatasetError(
                f"{file.path}: demo '{demo}': a step of '{key}' has shape {file.shape(demo, key)[1:]}, but {step} in "
                f"'{demos[0]}', or is no number: see `imitate dataset doctor`"
            )
        rows = max(1, _PIECE_BYTES // max(1, math.prod(step) * file.dtype(demo, key).itemsize))
        for start in range(0, file.shape(demo, key)[0], rows):
            waiting.append(file.read(demo, key, start, start + rows).reshape(-1, width))
            size += waiting[-1].nbytes
            if size >= _BATCH_BYTES:
                yield np.concatenate(waiting)
                waiting, size = [], 0
    if waiting:
        yield np.concatenate(waiting)
