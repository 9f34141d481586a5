"""Writing of demonstration files, episode by episode."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self

from imitate.errors import DatasetError, nearest

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Episode:
    """One demonstration of T steps: ``obs[t]`` is seen, ``actions[t]`` taken, ``next_obs[t]`` the result.

    Attributes:
        obs: (T, ...) per key; images uint8 (T, H, W, C).
        actions: (T, A).
        rewards: (T,).
        terminals: (T,) the task ended at this step.
        timeouts: (T,) the clock ended at this step; nobody knows what would have followed.
        next_obs: as ``obs``, or None.
        states: (T, S) simulator states, or None.
        attrs: of the demo: ``success``, ``model_file``, ``language``, ``task_id`` ...
        steps: further (T, ...) arrays, such as ``interventions``.
    """

    obs: Mapping[str, ArrayLike]
    actions: ArrayLike
    rewards: ArrayLike
    terminals: ArrayLike
    timeouts: ArrayLike
    next_obs: Mapping[str, ArrayLike] | None = None
    states: ArrayLike | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    steps: Mapping[str, ArrayLike] = field(default_factory=dict)


class DatasetWriter:
    """Writes a demonstration file; a context manager.

    Until :meth:`close` everything lies in ``<path>.partial``; each finished episode is safe there. Leaving the context
    with an exception keeps the partial file and makes no final one.

    Args:
        path: the HDF5 file to make.
        env_meta: the environment, as :func:`imitate.envs.make_env` takes it; written as JSON.
        overwrite: replace an existing file, at the moment of closing.
        control_freq: actions per second, if known.
        compress: gzip the observations: smaller, slower to read.

    Raises:
        DatasetError: the file exists, an episode is malformed, or the disk is full.
    """

    def __init__(
        self,
        path: str | Path,
        env_meta: Mapping[str, Any],
        *,
        overwrite: bool = False,
        control_freq: float | None = None,
        compress: bool = False,
    ) -> None:
        self.path = Path(path).expanduser()
        self.partial = self.path.with_name(self.path.name + ".partial")
        if self.path.exists() and not overwrite:
            raise DatasetError(
                f"{self.path}: exists already: choose another name, or pass overwrite=True"
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._compression = "gzip" if compress else None
        self._file: h5py.File | None = h5py.File(self.partial, "w")
        self._data = self._file.create_group("data")
        self._data.attrs["env_args"] = json.dumps(dict(env_meta))
        self._data.attrs["imitate_format"] = FORMAT_VERSION
        self._data.attrs["total"] = 0
        if control_freq is not None:
            self._data.attrs["control_freq"] = float(control_freq)
        self._names: list[str] = []
        self._running: dict[str, list[Any]] | None = None

    # ---- whole episodes --------------------------------------------------------------------------

    def append_episode(self, episode: Episode, name: str | None = None) -> str:
        """Write one episode; safe on disk when this returns.

        Args:
            episode: its arrays.
            name: of the demo; by default ``demo_<number>``.

        Returns:
            the demo's name.
        """
        name = f"demo_{len(self._names)}" if name is None else name
        if name in self._names:
            raise DatasetError(f"{self.path}: there is a demo '{name}' already: give another name")
        arrays = _arrays(episode, f"{self.path}: demo '{name}'")
        file = self._open_file()
        group = self._data.create_group(name)
        for key, value in arrays.items():
            compression = self._compression if key.startswith(("obs/", "next_obs/")) else None
            group.create_dataset(key, data=value, compression=compression)
        length = len(arrays["actions"])
        group.attrs["num_samples"] = length
        for key, attr in episode.attrs.items():
            group.attrs[key] = json.dumps(attr) if isinstance(attr, Mapping) else attr
        self._data.attrs["total"] = int(self._data.attrs["total"]) + length
        self._names.append(name)
        file.flush()
        return name

    def add_filter_key(self, name: str, demos: Iterable[str]) -> None:
        """Write a mask: the demos that ``filter_key=name`` selects. Replaces one of the same name."""
        chosen = list(demos)
        for demo in chosen:
            if demo not in self._names:
                raise DatasetError(
                    f"{self.path}: filter key '{name}': there is no demo '{demo}'; {nearest(demo, self._names)}"
                )
        file = self._open_file()
        masks = file.require_group("mask")
        if name in masks:
            del masks[name]
        masks.create_dataset(
            name, data=np.array([demo.encode() for demo in chosen], dtype=np.bytes_)
        )
        file.flush()

    # ---- step by step ----------------------------------------------------------------------------

    def start_episode(self) -> None:
        """Begin an episode that :meth:`append` fills."""
        self._running = {}

    def append(
        self,
        *,
        obs: Mapping[str, ArrayLike],
        action: ArrayLike,
        reward: float = 0.0,
        terminal: bool = False,
        timeout: bool = False,
        state: ArrayLike | None = None,
        **steps: ArrayLike,
    ) -> None:
        """One step: what was seen, what was done, what it gave.

        Args:
            obs: before the action.
            action: (A,).
            reward: for the action.
            terminal: the task ended with it.
            timeout: the clock ended with it.
            state: (S,) simulator state before the action.
            **steps: further values of this step, such as ``interventions``; each step needs the same ones.
        """
        if self._running is None:
            raise DatasetError(
                f"{self.path}: append() before start_episode(): call start_episode() first"
            )
        values: dict[str, Any] = {f"obs/{key}": value for key, value in obs.items()}
        values |= {
            "actions": action,
            "rewards": reward,
            "terminals": terminal,
            "timeouts": timeout,
            **steps,
        }
        if state is not None:
            values["states"] = state
        for key, value in values.items():
            self._running.setdefault(key, []).append(np.array(value))

    def finish_episode(
        self, *, success: bool | None = None, name: str | None = None, **attrs: Any
    ) -> str:
        """Write the running episode; its last step counts as a timeout unless it is terminal.

        ``next_obs`` is not written: readers take the following observation.
        """
        running, self._running = self._running, None
        if not running:
            raise DatasetError(
                f"{self.path}: finish_episode() without a step: call start_episode() and append() first"
            )
        arrays = {key: _stacked(values, f"{self.path}: '{key}'") for key, values in running.items()}
        if not arrays["terminals"][-1]:
            arrays["timeouts"][-1] = True
        given = {} if success is None else {"success": bool(success)}
        known = {"actions", "rewards", "terminals", "timeouts", "states"}
        episode = Episode(
            obs={key[4:]: value for key, value in arrays.items() if key.startswith("obs/")},
            actions=arrays["actions"],
            rewards=arrays["rewards"],
            terminals=arrays["terminals"],
            timeouts=arrays["timeouts"],
            states=arrays.get("states"),
            attrs={**given, **attrs},
            steps={
                key: value for key, value in arrays.items() if key not in known and "/" not in key
            },
        )
        return self.append_episode(episode, name)

    def discard_episode(self) -> None:
        """Forget the running episode."""
        self._running = None

    # ---- end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish: the partial file becomes the final one. Without an episode: an error, and nothing is left."""
        if self._file is None:
            return
        self._file.close()
        self._file = None
        if not self._names:
            self.partial.unlink()
            raise DatasetError(f"{self.path}: no episode was written: there is nothing to save")
        _sync(self.partial)
        os.replace(self.partial, self.path)
        _sync(self.path.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        elif self._file is not None:
            self._file.close()
            self._file = None
            if not self._names:
                self.partial.unlink()

    def _open_file(self) -> h5py.File:
        if self._file is None:
            raise DatasetError(
                f"{self.path}: the writer is closed: make a new one with another path"
            )
        return self._file


def _arrays(episode: Episode, where: str) -> dict[str, NDArray[Any]]:
    """Everything of an episode under its name in the file, checked."""
    given: dict[str, Any] = {
        "actions": episode.actions,
        "rewards": episode.rewards,
        "terminals": episode.terminals,
        "timeouts": episode.timeouts,
        **episode.steps,
        **{f"obs/{key}": value for key, value in episode.obs.items()},
        **{f"next_obs/{key}": value for key, value in (episode.next_obs or {}).items()},
    }
    if episode.states is not None:
        given["states"] = episode.states
    arrays = {key: np.asarray(value) for key, value in given.items()}
    if arrays["actions"].ndim != 2 or len(arrays["actions"]) == 0:
        raise DatasetError(
            f"{where}: 'actions' has shape {arrays['actions'].shape}; wanted (T, A) with T at least 1"
        )
    length = len(arrays["actions"])
    for key, value in arrays.items():
        if value.dtype == object or value.dtype.kind in "US":
            raise DatasetError(
                f"{where}: '{key}' is not an array of numbers: stack its steps into one (T, ...) array"
            )
        if value.ndim == 0 or len(value) != length:
            raise DatasetError(
                f"{where}: '{key}' has shape {value.shape}, but 'actions' has {length} steps: give both for each step"
            )
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise DatasetError(f"{where}: '{key}' holds NaN or inf: mend or discard the episode")
    arrays["rewards"] = arrays["rewards"].astype(np.float32).reshape(length)
    for key in ("terminals", "timeouts"):
        arrays[key] = arrays[key].astype(bool).astype(np.uint8).reshape(length)
    # Readers that know `dones` alone stop bootstrapping there, which is right at terminals only.
    arrays["dones"] = arrays["terminals"]
    return arrays


def _stacked(values: list[NDArray[Any]], where: str) -> NDArray[Any]:
    shapes = {value.shape for value in values}
    if len(shapes) > 1:
        raise DatasetError(
            f"{where}: its steps have the shapes {sorted(shapes)}: give the same shape at each step"
        )
    return np.stack(values)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
