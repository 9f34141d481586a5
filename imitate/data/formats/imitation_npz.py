"""Trajectories of the ``imitation`` library in one ``.npz``.

    obs       (sum of T + n, ...)   T + 1 observations per trajectory, one after the other
    acts      (sum of T, ...)
    rews      (sum of T,)           may be missing
    terminal  (n,)                  True if the trajectory ended, also by a time limit
    indices   (n - 1,)              index of the first action of each trajectory but the first
    infos     pickled objects, which are never read

Discrete actions become one-hot rows, which this package's gymnasium environments accept and policies can learn.
"""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.file.episode import Episode
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

_WANTED = {"obs", "acts", "terminal", "indices"}
_KNOWN = _WANTED | {"rews", "infos"}


def _recognises(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return {f"{name}.npy" for name in _WANTED} <= set(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


@contextmanager
def _read(path: Path, options: Options, report: ConversionReport) -> Iterator[OpenedDataset]:
    with zipfile.ZipFile(path) as archive:
        present = {name[:-4] for name in archive.namelist() if name.endswith(".npy")}
    missing = sorted(_WANTED - present)
    if missing:
        raise DatasetError(
            f"{path}: has no array '{missing[0]}' (found: {', '.join(sorted(present)) or 'nothing'}): "
            "it is not a file of trajectories of the imitation library"
        )
    arrays = read_arrays(path, sorted(present & _KNOWN - {"infos"}))
    for name in sorted(present - set(arrays)):
        report.dropped[name] = (
            "pickled objects, which may run code when read" if name == "infos" else "unknown array"
        )
    bounds = _bounds(arrays, path)
    yield OpenedDataset(
        env_meta=gymnasium_meta(options.env, report),
        demos=_demos(arrays, bounds, _timeouts(arrays, bounds, options, report), report),
        count=len(bounds) - 1,
    )


def _bounds(arrays: dict[str, NDArray[Any]], path: Path) -> NDArray[np.int64]:
    """Return the index of the first action of each trajectory, and the end of the last trajectory."""
    steps = len(arrays["acts"])
    bounds = np.concatenate([[0], arrays["indices"].astype(np.int64).ravel(), [steps]])
    if (np.diff(bounds) <= 0).any():
        raise DatasetError(
            f"{path}: 'indices' does not divide {steps} actions into trajectories of one step or "
            "more: the file is damaged"
        )
    trajectories = len(bounds) - 1
    same_length(
        {"obs": len(arrays["obs"]), "acts and one more per trajectory": steps + trajectories},
        str(path),
    )
    same_length({"terminal": arrays["terminal"].size, "indices and one": trajectories}, str(path))
    if "rews" in arrays:
        same_length({"rews": arrays["rews"].size, "acts": steps}, str(path))
    return bounds


def _timeouts(
    arrays: dict[str, NDArray[Any]],
    bounds: NDArray[np.int64],
    options: Options,
    report: ConversionReport,
) -> NDArray[np.bool_]:
    """Return a mask of the trajectories that timed out, by their length, because ``terminal`` is true for them too."""
    lengths = np.diff(bounds)
    clock = clock_of(options, options.env)
    source = "from --horizon" if options.horizon is not None else f"of {options.env}"
    if clock is None:
        longest = int(lengths.max())
        if (lengths == longest).sum() >= 2:
            clock = longest
            source = (
                "a guess: several trajectories have exactly this length and none is longer; give "
                "--horizon or --env"
            )
    unfinished = ~arrays["terminal"].astype(bool).ravel()
    by_clock = unfinished | (lengths >= clock if clock is not None else False)
    if clock is None:
        report.note(
            "'terminal' is true for time limits too, but the time limit is unknown, so all ends "
            "count as terminals: give --horizon or --env"
        )
    else:
        report.synthesised["timeouts"] = (
            f"{int(by_clock.sum())} of {len(lengths)} trajectories time out, after {clock} steps ({source})"
        )
    return np.asarray(by_clock, dtype=bool)


def _demos(
    arrays: dict[str, NDArray[Any]],
    bounds: NDArray[np.int64],
    by_clock: NDArray[np.bool_],
    report: ConversionReport,
) -> Iterator[NamedDemo]:
    key, obs = named_obs(arrays["obs"], "obs", report)
    actions = action_rows(arrays["acts"], choices_of(arrays["acts"], "'acts'"), report)
    report.renamed["acts"] = "actions"
    rewards = arrays.get("rews")
    if rewards is None:
        report.synthesised["rewards"] = "0: the file has none"
    else:
        report.renamed["rews"] = "rewards"
    report.renamed["terminal"] = "terminals"
    for number, (start, stop) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        seen = obs[start + number : stop + number + 1]
        last = np.arange(stop - start) == stop - start - 1
        yield NamedDemo(
            f"demo_{number}",
            Episode(
                obs={key: seen[:-1]},
                next_obs={key: seen[1:]},
                actions=actions[start:stop],
                rewards=np.zeros(stop - start, np.float32)
                if rewards is None
                else rewards.ravel()[start:stop],
                terminals=last & ~by_clock[number],
                timeouts=last & by_clock[number],
            ),
        )


FORMAT = Format(
    name="imitation",
    summary="trajectories of the imitation library (.npz)",
    recognises=_recognises,
    read=_read,
    options=frozenset({"env", "horizon"}),
)
