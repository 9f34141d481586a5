"""Replay buffers dumped by d3rlpy.

2.x: per episode ``observations_i`` (T, ...), or ``observations_i_j`` for tuples, ``actions_i``, ``rewards_i`` (T, 1)
and one flag ``terminated_i``. There are T observations, so the last next observation is missing. At a terminal it is
not used for bootstrapping, and the last observation is used instead; at a timeout the last row is dropped, so that the
row before it ends the episode with an exact next observation.

1.x: flat arrays, see :mod:`imitate.data.formats.d4rl`, with ``episode_terminals`` that include timeouts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
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
    gymnasium_meta,
    same_length,
)
from imitate.data.formats.d4rl import open_flat
from imitate.data.formats.gym_arrays import action_rows, choices_of, named_obs
from imitate.errors import DatasetError


def _recognises(path: Path) -> bool:
    with hdf5_tree.peeked(path) as file:
        return _is_v2(file) or (
            "observations" in file and ("episode_terminals" in file or "discrete_action" in file)
        )


def _is_v2(file: Any) -> bool:
    return "num_episodes" in file and "columns" in file


@contextmanager
def _read(path: Path, options: Options, report: ConversionReport) -> Iterator[OpenedDataset]:
    with hdf5_tree.opened(path) as file:
        if not _is_v2(file):
            yield open_flat(file, path, options, report)
            return
        count = int(hdf5_tree.wanted(file, "num_episodes", str(path))[()])
        yield OpenedDataset(
            env_meta=gymnasium_meta(options.env, report),
            demos=_demos(file, count, path, report),
            count=count,
        )


def _demos(
    file: h5py.File, count: int, path: Path, report: ConversionReport
) -> Iterator[NamedDemo]:
    choices = _choices(file, count, path)
    for number in range(count):
        where = f"{path}: episode {number}"
        seen = _observations(file, number, where)
        actions = hdf5_tree.rows(hdf5_tree.wanted(file, f"actions_{number}", where))
        rewards = hdf5_tree.rows(hdf5_tree.wanted(file, f"rewards_{number}", where))
        length = same_length(
            {
                **{k: len(v) for k, v in seen.items()},
                "actions": len(actions),
                "rewards": len(rewards),
            },
            where,
        )
        terminated = bool(np.any(hdf5_tree.wanted(file, f"terminated_{number}", where)[()]))
        episode = _episode(seen, action_rows(actions, choices, report), rewards, terminated, report)
        if episode is None:
            report.dropped[f"episode {number}"] = (
                f"{length} steps, of which none has a next observation"
            )
            continue
        yield NamedDemo(f"demo_{number}", episode)


def _choices(file: h5py.File, count: int, path: Path) -> int | None:
    """Return the number of discrete actions, or None if actions are not discrete."""
    largest = 0
    for number in range(count):
        dataset = hdf5_tree.wanted(file, f"actions_{number}", str(path))
        if dataset.dtype.kind not in "iub" or dataset.size != len(dataset):
            return None
        found = choices_of(hdf5_tree.rows(dataset), f"{path}: 'actions_{number}'")
        largest = max(largest, found or 0)
    return largest or None


def _observations(file: h5py.File, number: int, where: str) -> dict[str, NDArray[Any]]:
    name = f"observations_{number}"
    if name in file:
        return {"observations": hdf5_tree.rows(file[name])}
    parts = sorted(
        (int(key.rpartition("_")[2]), key)
        for key in file
        if key.startswith(f"{name}_") and key.rpartition("_")[2].isdigit()
    )
    if not parts:
        raise DatasetError(
            f"{where}: has no array '{name}': the file is cut short or of another version"
        )
    return {f"observations_{part}": hdf5_tree.rows(file[key]) for part, key in parts}


def _episode(
    seen: dict[str, NDArray[Any]],
    actions: NDArray[Any],
    rewards: NDArray[Any],
    terminated: bool,
    report: ConversionReport,
) -> Episode | None:
    length = len(actions) - (not terminated)
    if length < 1:
        return None
    obs, next_obs = {}, {}
    for name, values in seen.items():
        key, turned = named_obs(values, name, report)
        if len(seen) > 1:
            key = name
            report.renamed[name] = f"obs/{name}"
        obs[key] = turned[:length]
        next_obs[key] = np.concatenate([turned[1:], turned[-1:]])[:length]
    report.keep("actions", "rewards")
    report.renamed["terminated"] = "terminals, at the last step"
    report.synthesised["next_obs"] = (
        "the following observation; at a terminal the same observation, from which nothing is bootstrapped"
    )
    if not terminated:
        report.dropped["last row of each episode that timed out"] = (
            "its next observation is not in the file"
        )
    last = np.arange(length) == length - 1
    return Episode(
        obs=obs,
        next_obs=next_obs,
        actions=actions[:length],
        rewards=rewards.reshape(-1)[:length],
        terminals=last & terminated,
        timeouts=last & (not terminated),
    )


FORMAT = Format(
    name="d3rlpy",
    summary="replay buffers dumped by d3rlpy, 1.x and 2.x",
    recognises=_recognises,
    read=_read,
    options=frozenset({"env", "horizon"}),
)
