"""Trajectories of OGBench in one ``.npz``, such as ``cube-single-play-v0.npz``.

    observations  (N, ...)   vectors or images; the rows of all trajectories, one after the other
    actions       (N, A)     the last one of a trajectory has no effect
    terminals     (N,)       1 at the last row of each trajectory, where it is truncated
    qpos, qvel, button_states ...   (N, ...) states of the simulator

So a trajectory of T + 1 rows has T steps, and the last row is only a next observation.
"""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from imitate.data.file.episode import Episode
from imitate.data.formats.base import (
    ConversionReport,
    Format,
    NamedDemo,
    OpenedDataset,
    Options,
    gymnasium_meta,
    same_length,
)
from imitate.data.formats.gym_arrays import named_obs
from imitate.errors import DatasetError
from imitate.system.memory import read_arrays
from imitate.system.recognition import is_of_ogbench

_WANTED = ("observations", "actions", "terminals")


def _recognises(path: Path) -> bool:
    return path.is_file() and is_of_ogbench(path)


@contextmanager
def _read(path: Path, options: Options, report: ConversionReport) -> Iterator[OpenedDataset]:
    with zipfile.ZipFile(path) as archive:
        names = [name[:-4] for name in archive.namelist() if name.endswith(".npy")]
    missing = [name for name in _WANTED if name not in names]
    if missing:
        raise DatasetError(
            f"{path}: has no array '{missing[0]}' (found: {', '.join(names) or 'nothing'}): it is not a file of OGBench"
        )
    arrays = read_arrays(path, names)
    rows = same_length({name: len(array) for name, array in arrays.items()}, str(path))
    ends = np.flatnonzero(arrays["terminals"].reshape(rows)) + 1
    bounds = np.unique(np.concatenate([[0], ends, [rows]])).astype(np.int64)
    yield OpenedDataset(
        env_meta=gymnasium_meta(options.env, report),
        demos=_demos(arrays, bounds, report),
        count=int((np.diff(bounds) > 1).sum()),
    )


def _demos(
    arrays: dict[str, NDArray[np.generic]], bounds: NDArray[np.int64], report: ConversionReport
) -> Iterator[NamedDemo]:
    key, obs = named_obs(arrays["observations"], "observations", report)
    report.keep("actions")
    report.synthesised["rewards"] = "0: the file has none; OGBench's tasks compute them from a goal"
    report.synthesised["timeouts"] = "at the last step of each trajectory, which is cut there"
    report.changed["terminals"] = (
        "ends of trajectories -> timeouts; the last row is a next observation"
    )
    others = [name for name in arrays if name not in _WANTED]
    report.keep(*others)
    number = 0
    for start, stop in zip(bounds[:-1], bounds[1:] - 1, strict=True):
        if stop == start:
            continue
        length = stop - start
        yield NamedDemo(
            f"demo_{number}",
            Episode(
                obs={key: obs[start:stop]},
                next_obs={key: obs[start + 1 : stop + 1]},
                actions=arrays["actions"][start:stop].reshape(length, -1),
                rewards=np.zeros(length, dtype=np.float32),
                terminals=np.zeros(length, dtype=bool),
                timeouts=np.arange(length) == length - 1,
                steps={name: arrays[name][start:stop] for name in others},
            ),
        )
        number += 1


FORMAT = Format(
    name="ogbench",
    summary="trajectories of OGBench (.npz)",
    recognises=_recognises,
    read=_read,
    options=frozenset({"env"}),
)
