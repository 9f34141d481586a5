"""Writing of demonstration files, episode by episode."""

import json
import logging
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self

from imitate.data.file.confined import ConfinedFile, check_below
from imitate.data.file.episode import (
    Episode,
    StepForm,
    StepForms,
    arrays_of,
    as_step,
    attrs_of,
    check_first,
    stacked,
)
from imitate.data.file.hdf5_format import DemoFile
from imitate.data.file.image_codec import STORAGES, ImageStorage, storage_of, write_images
from imitate.data.file.journal import JournaledFile, is_being_written, partial_of, roll_back
from imitate.errors import ConfigError, DatasetError, nearest
from imitate.system.plain_files import edited, give_name
from imitate.system.text import SIGNALS, counted

FORMAT_VERSION = 1
_MEANT = ("success", "name", "attrs", "language", "task_id", "model_file", "num_samples")
"""Names of arguments of :meth:`DatasetWriter.finish_episode`, and of attributes that readers use."""
_log = logging.getLogger(__name__)


class DatasetWriter:
    """Writer of a demonstration file; a context manager.

    Until :meth:`close`, all data are in ``<path>.partial``. If the process dies at any moment, or the disk is full,
    only the running episode is lost. If the context is left with an exception, the partial file is kept, and
    :func:`finish_partial` can complete it.

    Args:
        path: the HDF5 file to write.
        env_meta: the environment, as an argument of :func:`imitate.envs.make_env`; written as JSON.
        overwrite: true to replace an existing partial file now, and an existing file when closing.
        append: true to continue an existing file, or the partial file of an interrupted writer; ``env_meta`` is then
            read from the file. Until :meth:`close`, the file is renamed to its partial name.
        control_freq: control rate in Hz, or None if unknown; with ``append`` it must be the rate of the file.
        image_storage: storage of observations with two or more dimensions per step. 'raw': uncompressed, fastest to
            read; 'gzip', 'lzf': compressed without loss; 'jpeg': uint8 images (H, W, 3) as one JPEG per step, with
            loss, a tenth of the size or less, and other observations with gzip.
        jpeg_quality: 1 to 100.
        keep_partial: true to keep finished episodes when the context is left with an exception; if false, they are kept
            only if an existing file is continued.
        attrs: further attributes of the file's group ``data``; with ``append`` the file's attributes are kept.
        strict: true to refuse observations that readers would misinterpret: names with '/', images that are not uint8
            (H, W, C), such as floats or channels first (images named 'depth' or 'segmentation' may have any form), and
            ``next_obs`` that does not match ``obs``; false for tools that copy existing recordings.
        optional: arrays that may be missing in some episodes.

    Raises:
        ConfigError: an argument has an invalid value.
        DatasetError: the file exists or was recorded at another rate, an episode is malformed, or the disk is full.
    """

    def __init__(
        self,
        path: str | Path,
        env_meta: Mapping[str, Any],
        *,
        overwrite: bool = False,
        append: bool = False,
        control_freq: float | None = None,
        image_storage: ImageStorage = "raw",
        jpeg_quality: int = 95,
        keep_partial: bool = True,
        attrs: Mapping[str, Any] | None = None,
        strict: bool = True,
        optional: Collection[str] = (),
    ) -> None:
        self.path = Path(path).expanduser()
        self.partial = partial_of(self.path)
        if image_storage not in STORAGES:
            raise ConfigError(
                f"image_storage is {image_storage!r}; {nearest(str(image_storage), STORAGES)}"
            )
        if not 1 <= jpeg_quality <= 100:
            raise ConfigError(f"jpeg_quality is {jpeg_quality}: expected 1 to 100")
        rate_hz = None if control_freq is None else _checked_rate(control_freq)
        goes_on = append and _taken_up(self.path, self.partial, rate_hz)
        if not goes_on:
            _check_free(self.path, self.partial, overwrite)
        self._image_storage: ImageStorage = image_storage
        self._jpeg_quality = jpeg_quality
        self._keep_partial = keep_partial or goes_on
        self._strict = strict
        self._optional = optional
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._journal = JournaledFile(self.partial, keep=goes_on)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self._file: h5py.File | None = ConfinedFile(self._journal, "r+" if goes_on else "w")
        self._names: list[str] = []
        self._layout: dict[str, StepForm] = {}
        self._running: dict[str, list[Any]] | None = None
        self._forms: StepForms
        if goes_on:
            self._look_at_demos(self._file["data"])
            return
        with self._saved() as file:
            data = file.create_group("data")
            data.attrs.update(attrs or {})
            data.attrs["env_args"] = json.dumps(dict(env_meta))
            data.attrs["imitate_format"] = FORMAT_VERSION
            data.attrs["total"] = 0
            if rate_hz is not None:
                data.attrs["control_freq"] = rate_hz

    def _look_at_demos(self, data: h5py.Group) -> None:
        """Read the names of the existing demos and the form of their arrays."""
        self._names = list(data)
        if self._names:
            first = data[self._names[0]]
            check_below(first)

            def note(key: str, node: h5py.Dataset | h5py.Group) -> None:
                if isinstance(node, h5py.Dataset):
                    frame = storage_of(node).frame
                    dtype = np.dtype(np.uint8) if frame else node.dtype
                    self._layout[key] = StepForm(frame or node.shape[1:], dtype)

            first.visititems(note)

    @property
    def num_episodes(self) -> int:
        """Number of episodes in the file so far."""
        return len(self._names)

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays that each episode has; empty before the first episode."""
        return tuple(self._layout)

    # ---- whole episodes --------------------------------------------------------------------------

    def append_episode(self, episode: Episode, name: str | None = None) -> str:
        """Write one episode; it is safe on the disk when this method returns.

        Args:
            episode: the episode with its arrays.
            name: name of the demo; by default ``demo_<number>``.

        Returns:
            the demo's name.

        Raises:
            DatasetError: for the same reasons as in :meth:`append`, or ``obs`` and ``next_obs`` do not match.
        """
        name = f"demo_{len(self._names)}" if name is None else name
        if name in self._names:
            raise DatasetError(f"{self.path}: there is a demo '{name}' already: give another name")
        where = f"{self.path}: demo '{name}'"
        if not name or "/" in name or name == ".":
            raise DatasetError(
                f"{where}: a name needs at least one letter and must not contain '/': give another name"
            )
        arrays, attrs = arrays_of(episode, where), attrs_of(episode, where)
        self._check_alike(arrays, where)
        if self._strict and not self._layout:
            self._check_first(arrays, where)
        with self._saved() as file:
            data = file["data"]
            group = data.create_group(name)
            for key, value in arrays.items():
                is_image = value.ndim >= 3 and key.startswith(("obs/", "next_obs/"))
                storage = self._image_storage if is_image else "raw"
                write_images(group, key, value, storage, self._jpeg_quality)
            length = len(arrays["actions"])
            group.attrs.update({"num_samples": length, **attrs})
            data.attrs["total"] = int(data.attrs["total"]) + length
        self._names.append(name)
        forms = {key: StepForm(value.shape[1:], value.dtype) for key, value in arrays.items()}
        self._layout = {**forms, **self._layout}
        return name

    def _check_first(self, arrays: Mapping[str, NDArray[Any]], where: str) -> None:
        """Check that the form of the first episode is valid."""
        for key, value in arrays.items():
            place = f"{where}: '{key}'"
            check_first(key, value.shape[1:], value.dtype, place, strict=True)
        following = {key[5:]: value for key, value in arrays.items() if key.startswith("next_obs/")}
        for key, value in following.items():
            obs = arrays.get(key)
            if obs is None or obs.shape != value.shape:
                seen = "is missing" if obs is None else f"has shape {obs.shape}"
                raise DatasetError(
                    f"{where}: 'next_{key}' has shape {value.shape}, but '{key}' {seen}: give both with the "
                    "same shape"
                )
        for key in arrays:
            if following and key.startswith("obs/") and key not in following:
                raise DatasetError(
                    f"{where}: 'next_{key}' is missing: give next_obs for all observations, or for none"
                )

    def _check_alike(self, arrays: Mapping[str, NDArray[Any]], where: str) -> None:
        """Check that the episode has the same arrays as the file's other episodes."""
        for key, (step, dtype) in self._layout.items():
            if key not in arrays:
                if key in self._optional:
                    continue
                raise DatasetError(
                    f"{where}: '{key}' is missing, which demo '{self._names[0]}' has: give it in each episode"
                )
            if arrays[key].shape[1:] != step:
                raise DatasetError(
                    f"{where}: a step of '{key}' has shape {arrays[key].shape[1:]}, but {step} in demo "
                    f"'{self._names[0]}': give the same shape in each episode"
                )
            if arrays[key].dtype != dtype and np.uint8 in (arrays[key].dtype, dtype):
                raise DatasetError(
                    f"{where}: '{key}' is {arrays[key].dtype}, but {dtype} in demo '{self._names[0]}': "
                    "give the same type in each episode"
                )
        for key in arrays:
            if self._layout and key not in self._layout and key not in self._optional:
                raise DatasetError(
                    f"{where}: '{key}' is new, demo '{self._names[0]}' lacks it: give it in each episode or in none"
                )

    def add_filter_key(self, name: str, demos: Iterable[str]) -> None:
        """Write the mask ``name``, which readers select by ``filter_key``; a mask of that name is replaced."""
        chosen = list(demos)
        for demo in chosen:
            if demo not in self._names:
                raise DatasetError(
                    f"{self.path}: filter key '{name}': there is no demo '{demo}'; {nearest(demo, self._names)}"
                )
        with self._saved() as file:
            masks = file.require_group("mask")
            if name in masks:
                del masks[name]
            masks.create_dataset(
                name, data=np.array([demo.encode() for demo in chosen], dtype=np.bytes_)
            )

    # ---- step by step ----------------------------------------------------------------------------

    def start_episode(self) -> None:
        """Begin an episode, to which :meth:`append` adds steps.

        Raises:
            DatasetError: another episode has begun and was neither finished nor discarded.
        """
        if self._running is not None:
            steps = len(self._running.get("actions", ()))
            raise DatasetError(
                f"{self.path}: start_episode() while an episode of {counted(steps, 'step')} is running: "
                "call finish_episode() or discard_episode() first"
            )
        if any(key.startswith("next_obs/") for key in self._layout):
            raise DatasetError(
                f"{self.path}: demo '{self._names[0]}' has next_obs, which cannot be written step "
                "by step: give whole episodes to append_episode(), or start another file"
            )
        self._running = {}
        origin = self._names[0] if self._names else ""
        self._forms = StepForms(self._layout, origin, strict=self._strict)

    def append(
        self,
        *,
        obs: Mapping[str, ArrayLike],
        action: ArrayLike,
        reward: float = 0.0,
        terminal: bool = False,
        timeout: bool = False,
        state: ArrayLike | None = None,
        signals: Mapping[str, float] | None = None,
        **steps: ArrayLike,
    ) -> None:
        """Append one step: observation, action, reward.

        Args:
            obs: observations before the action.
            action: (A,) action.
            reward: reward of the action.
            terminal: true if the task ended with this step.
            timeout: true if the episode was truncated after this step.
            state: (S,) simulator state before the action.
            signals: further numbers of this step in addition to the reward, such as costs, for ``algo.rewards``.
            **steps: further values of this step, such as ``interventions``; each step needs the same names.

        Raises:
            DatasetError: there is no running episode; or a value is not a number, not finite, an image of another
                layout or type, or has another name, shape or type than before. The step is not added then.
        """
        if self._running is None:
            raise DatasetError(
                f"{self.path}: append() before start_episode(): call start_episode() first"
            )
        if not isinstance(obs, Mapping):
            raise DatasetError(
                f"{self.path}: obs is a {type(obs).__name__}: expected a dict of arrays by name, such as "
                '{"joint_pos": ...}'
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
        values |= {SIGNALS + key: value for key, value in (signals or {}).items()}
        where = f"{self.path}: step {len(self._running.get('actions', ()))}"
        if "next_obs" in steps:
            raise DatasetError(
                f"{where}: next_obs cannot be written step by step, because readers use the following observation: "
                "leave it out, or give whole episodes to append_episode()"
            )
        arrays = {key: as_step(value, f"{where}: '{key}'") for key, value in values.items()}
        self._forms.check(arrays, where)
        for key, array in arrays.items():
            self._running.setdefault(key, []).append(array)

    def finish_episode(
        self,
        *,
        success: bool | None = None,
        name: str | None = None,
        attrs: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> str:
        """Write the running episode; its last step is marked as a timeout unless it is terminal.

        ``next_obs`` is not written, because readers use the observation of the next step.

        Args:
            success: True if the task was solved, False if not, None if it is unknown.
            name: name of the demo; by default ``demo_<number>``.
            attrs: attributes of the demo with any name.
            **more: further attributes, such as ``language="lift the cube"``. A name that is similar to a known one
                (``success``, ``language``, ...) is refused as a possible misspelling.

        Returns:
            the demo's name.

        Raises:
            DatasetError: the episode has no step, ``success`` is neither true nor false, or an attribute's name is
                similar to a known one.
        """
        _check_spelling(more, self.path)
        if success is not None and success not in (True, False):
            raise DatasetError(
                f"{self.path}: success is {success!r}: expected True, False, or None if it is unknown"
            )
        running, self._running = self._running, None
        if not running:
            raise DatasetError(
                f"{self.path}: finish_episode() without a step: call start_episode() and append() first"
            )
        arrays = {key: stacked(values, f"{self.path}: '{key}'") for key, values in running.items()}
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
            attrs={**given, **more, **(attrs or {})},
            steps={
                key: value
                for key, value in arrays.items()
                if key not in known and not key.startswith("obs/")
            },
        )
        return self.append_episode(episode, name)

    def discard_episode(self) -> None:
        """Discard the running episode."""
        self._running = None

    # ---- end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish the file by renaming the partial file. If there is no episode, remove it and raise an error.

        An episode that is still running is not written, and a warning is logged.
        """
        if self._file is None:
            return
        left = len((self._running or {}).get("actions", ()))
        running = f"the running episode of {counted(left, 'step')}"
        lost = f"{running} was neither finished nor discarded: call finish_episode() before close()"
        if not self._names:
            self._abandon()
            reason = lost if left else "there is nothing to save"
            raise DatasetError(f"{self.path}: no episode was written: {reason}")
        if left:
            _log.warning("%s: %s", self.path, lost)
        with self._saved() as file:
            file.close()
        self._file = None
        self._journal.close()
        give_name(self.partial, self.path)

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
            self._abandon()

    @contextmanager
    def _saved(self) -> Iterator[h5py.File]:
        """Make the changes of the body atomically; at the end of the body they are on disk."""
        if self._file is None:
            raise DatasetError(
                f"{self.path}: the writer is closed: make a new one with another path"
            )
        try:
            yield self._file
            if self._file:
                self._file.flush()
            self._journal.commit()
        except BaseException as error:
            self._abandon()
            if isinstance(error, OSError):
                saved = (
                    f"; the episodes before ({len(self._names)}) are safe in {self.partial}"
                    if self._names and self._keep_partial
                    else ""
                )
                raise DatasetError(
                    f"{self.path}: cannot be written ({error.strerror or error}){saved}: make room on the disk"
                ) from error
            raise

    def _abandon(self) -> None:
        """Close the file and keep the finished episodes; remove the file if there are none."""
        self._journal.stop()
        with suppress(Exception):
            if self._file is not None:
                self._file.close()
        self._file = None
        self._journal.close(roll_back=True)
        if self._names and self._keep_partial:
            _log.warning("finished episodes (%d) are kept in %s", len(self._names), self.partial)
        else:
            self.partial.unlink()


def _check_spelling(attrs: Iterable[str], path: Path) -> None:
    for name in attrs:
        close = get_close_matches(name.lower(), _MEANT, n=1, cutoff=0.8)
        if close and name not in _MEANT:
            raise DatasetError(
                f"{path}: finish_episode({name}=...): did you mean '{close[0]}'? "
                f"for an attribute of that name pass attrs={{'{name}': ...}}"
            )


def finish_partial(path: str | Path) -> int:
    """Make the final file from the partial file of an interrupted :class:`DatasetWriter`.

    Args:
        path: the intended file, with or without ``.partial``.

    Returns:
        number of episodes in the file.

    Raises:
        DatasetError: there is no partial file, it is still being written, it has no episode, or ``path`` exists.
    """
    path = Path(path).expanduser()
    path = path.with_suffix("") if path.suffix == ".partial" else path
    partial = partial_of(path)
    if path.exists() and not partial.exists():
        raise DatasetError(f"{path}: is finished already: there is no {partial.name} beside it")
    if path.exists():
        raise DatasetError(f"{path}: exists already: rename or remove it first")
    if is_being_written(partial):
        raise DatasetError(f"{partial}: another process is writing it: wait for it or stop it")
    roll_back(partial)
    with DemoFile(partial) as file:
        count = len(file.demos())
    if count == 0:
        raise DatasetError(f"{partial}: holds no episode: remove it")
    give_name(partial, path)
    return count


def _checked_rate(control_freq: float) -> float:
    try:
        rate_hz = float(control_freq)
    except (TypeError, ValueError):
        rate_hz = 0.0
    if not 0 < rate_hz < math.inf:
        raise ConfigError(
            f"control_freq is {control_freq!r}: expected the number of actions per second, such as 10"
        )
    return rate_hz


def _taken_up(path: Path, partial: Path, rate_hz: float | None) -> bool:
    """Rename an existing file to its partial name, to continue it; return true if there is one.

    Raises:
        DatasetError: another process writes it, both files exist, or its demos were recorded at another rate.
    """
    if is_being_written(partial):
        raise DatasetError(
            f"{path}: another process is writing it: wait for it or choose another name"
        )
    if partial.exists() and path.exists():
        raise DatasetError(f"{path}: exists beside {partial}: remove one of them")
    if path.exists():
        _check_same_rate(path, rate_hz)
        try:
            edited(path).close()  # raises an error for a link before the file is renamed
        except OSError as error:
            raise _unwritable(path, error) from error
        give_name(path, partial)
    elif partial.exists():
        roll_back(partial)
        _check_same_rate(partial, rate_hz)
    return partial.exists()


def _unwritable(path: Path, error: OSError) -> DatasetError:
    return DatasetError(f"{path}: cannot be written ({error.strerror}): choose another folder")


def _check_same_rate(path: Path, rate_hz: float | None) -> None:
    with DemoFile(path) as file:
        recorded = file.control_freq
    if None not in (rate_hz, recorded) and rate_hz != recorded:
        raise DatasetError(
            f"{path}: was recorded at {recorded:g} Hz, and control_freq is {rate_hz:g}: record at the same rate, "
            "or into another file"
        )


def _check_free(path: Path, partial: Path, overwrite: bool) -> None:
    if is_being_written(partial):
        raise DatasetError(
            f"{path}: another process is writing it: wait for it or choose another name"
        )
    if overwrite:
        return
    if path.exists():
        raise DatasetError(f"{path}: exists already: choose another name, or pass overwrite=True")
    if partial.exists():
        raise DatasetError(
            f"{partial}: is left from an interrupted recording: make a file of it with: "
            f"imitate dataset finish {path}, or remove it"
        )
