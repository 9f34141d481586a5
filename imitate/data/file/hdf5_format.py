"""Reading of demonstration files in robomimic's HDF5 layout.

/data                   attrs: total, env_args (JSON), imitate_format, control_freq
  /<demo>               attrs: num_samples, success, model_file, ...
    actions (T, A), rewards (T,), dones (T,), terminals (T,), timeouts (T,), states (T, S)
    obs/<key> (T, ...), next_obs/<key> (T, ...)         images uint8 (T, H, W, C), or one JPEG per step
/mask/<filter key>      names of demos
"""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from h5py import h5d
from numpy.typing import NDArray
from typing_extensions import Self

from imitate.data.file.confined import ConfinedFile, arrays_below
from imitate.data.file.encoded_frames import DamagedFrameError
from imitate.data.file.image_codec import FrameReader, storage_of
from imitate.data.file.journal import is_being_written, refuse_interrupted, unfinished_words
from imitate.errors import DatasetError, nearest
from imitate.system.missing import no_such
from imitate.system.plain_files import MAX_SETTINGS, check_depth, json_value
from imitate.system.recognition import diagnosis

_RECORDS_BYTES = 2**17
_MOST_NAMES = 4
PIECE_BYTES = 2**25
_ALWAYS_BYTES = 2**26
"""Size in bytes up to which the size in an array's header is always accepted."""
_MOST_RATIO = 1100
"""Largest ratio of the size in the header to the stored size, for larger arrays."""
DAMAGED = "it is cut short or damaged; copy or collect it again"


def natural_key(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a sorting key that puts ``demo_2`` before ``demo_10``; numbers may have any number of digits."""
    parts = re.split(r"([0-9]+)", name)
    numbers = [part.lstrip("0") for part in parts]
    return [
        (len(numbers[place]), numbers[place]) if place % 2 else (0, part)
        for place, part in enumerate(parts)
    ], name


class _Array(NamedTuple):
    values: h5py.Dataset
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    frames: FrameReader | None


class NoDemosError(DatasetError):
    """Error for an HDF5 file without a group of demonstrations."""


class DemoFile:
    """HDF5 file of demonstrations, opened for reading; also a context manager.

    Args:
        path: path of the dataset, used in error messages.
        swmr: true to open the file in HDF5's SWMR mode, so that another process can write to it.
        hdf5_path: the HDF5 file to read; None for ``path`` itself.

    Attributes:
        path: path of the dataset.
        hdf5_path: the HDF5 file that is read.

    Raises:
        NoDemosError: the file has no group of demonstrations.
        DatasetError: something is missing or damaged; the message names it with file and demo. All methods may raise
            this error.
    """

    def __init__(
        self, path: str | Path, *, swmr: bool = False, hdf5_path: Path | None = None
    ) -> None:
        self.path = Path(path).expanduser()
        self.hdf5_path = self.path if hdf5_path is None else hdf5_path
        self._file = _open(self.hdf5_path, swmr)
        self._data = self._demo_group()
        # The current demo and its arrays stay open, because HDF5 takes longer to open an array than to read it.
        self._demo: tuple[str, h5py.Group] | None = None
        self._arrays: dict[str, _Array] = {}

    def _demo_group(self) -> h5py.Group:
        with self.reading("data"):
            data = self._file.get("data")
            found = sorted(self._file)
        if isinstance(data, h5py.Group):
            return data
        self.close()
        names = ", ".join(found[:_MOST_NAMES]) or "nothing"
        more = f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
        raise NoDemosError(
            f"{self.path}: there is no group 'data' (found: {names}{more}): demonstrations belong in data/<demo>; "
            "write them with imitate.data.DatasetWriter (docs/own_data.md#recordings-of-another-layout)"
        )

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- demos -----------------------------------------------------------------------------------

    def demos(self, filter_key: str | None = None) -> list[str]:
        """Return the names of all demos, or of the demos of a mask, in natural order."""
        with self.reading("data"):
            names = list(self._data)
        if filter_key is not None:
            known = set(names)
            names = self._masked(filter_key)
            for name in names:
                if name not in known:
                    raise DatasetError(
                        f"{self.path}: mask '{filter_key}' names demo '{name}', which is not in the file "
                        f"({nearest(name, known)}): remove the name from the mask"
                    )
        return sorted(set(names), key=natural_key)

    def filter_keys(self) -> dict[str, list[str]]:
        """Return the masks: lists of demos by name."""
        with self.reading("mask"):
            masks = list(self._file["mask"]) if "mask" in self._file else []
        return {name: sorted(self._masked(name), key=natural_key) for name in masks}

    def _masked(self, filter_key: str) -> list[str]:
        with self.reading("mask"):
            masks = self._file.get("mask", {})
            if filter_key not in masks:
                remedy = f"make the filter keys train and valid with: imitate dataset split {self.path} --in-place"
                raise DatasetError(
                    f"{self.path}: there is no filter key '{filter_key}' under 'mask'; "
                    f"{nearest(filter_key, masks) if masks else remedy}"
                )
            return [
                name.decode(errors="surrogateescape") if isinstance(name, bytes) else str(name)
                for name in np.ravel(masks[filter_key][()])
            ]

    def length(self, demo: str) -> int:
        """Return the number of steps of a demo, which is the length of its actions."""
        if not self.has(demo, "actions"):
            with self.reading(f"demo '{demo}'"):
                found = sorted(self._group(demo))
            raise DatasetError(
                f"{self.path}: demo '{demo}' has no 'actions' (found: {', '.join(found) or 'nothing'}): "
                "remove the demo or write its actions"
            )
        return self.shape(demo, "actions")[0]

    # ---- arrays ----------------------------------------------------------------------------------

    def obs_keys(self, demo: str, group: str = "obs") -> list[str]:
        """Return the sorted observation keys of a demo, such as 'object', or 'arm/pos' for an array in a nested group.

        ``group`` is 'obs' or 'next_obs'.
        """
        with self.reading(f"data/{demo}/{group}"):
            found = self._group(demo).get(group)
            if not isinstance(found, h5py.Group):
                return []
            keys: list[str] = []
            for name in found:
                inner = found.get(name)
                if isinstance(inner, h5py.Group):
                    keys += [key for key, _ in arrays_below(inner.id, f"{name}/")]
                else:
                    keys.append(name)
            return sorted(keys)

    def keys(self, demo: str) -> list[str]:
        """Return the paths of all arrays of a demo, sorted: 'actions', 'obs/object', ..."""
        group = self._group(demo)
        with self.reading(f"demo '{demo}'"):
            return sorted(key for key, _ in arrays_below(group.id))

    def check_confined(self) -> None:
        """Check that no array of any demo is stored in another file; call this before a byte-for-byte copy.

        Raises:
            OutsideFileError: an array is stored in another file.
        """
        for demo in self.demos():
            self.keys(demo)

    def has(self, demo: str, key: str) -> bool:
        """Return true if a demo has the array ``key``, such as 'rewards' or 'obs/object'."""
        with self.reading(f"demo '{demo}'"):
            group = self._group(demo)
            return key in self._arrays or key in group

    def group(self, demo: str) -> h5py.Group:
        """Return the group of a demo, for use inside :meth:`reading`."""
        return self._group(demo)

    def array(self, demo: str, key: str) -> h5py.Dataset:
        """Return the array without reading it, for use inside :meth:`reading`."""
        return self._array(demo, key).values

    def shape(self, demo: str, key: str) -> tuple[int, ...]:
        """Return the shape ``(T, ...)`` of an array; for compressed frames, the shape after decoding."""
        return self._array(demo, key).shape

    def dtype(self, demo: str, key: str) -> np.dtype[Any]:
        """Return the type of an array's values."""
        return self._array(demo, key).dtype

    def storage(self, demo: str, key: str) -> str:
        """Return how an array is stored: see :class:`imitate.data.file.image_codec.Storage`."""
        array = self._array(demo, key)
        with self.reading(f"demo '{demo}', '{key}'"):
            return array.frames.encoding if array.frames else storage_of(array.values).kind

    def read(
        self,
        demo: str,
        key: str,
        start: int = 0,
        stop: int | None = None,
        threads: Executor | None = None,
    ) -> NDArray[Any]:
        """Read steps ``start`` to ``stop`` of an array, by default all; images are decoded by ``threads`` if given."""
        array = self._array(demo, key)
        with self.reading(f"demo '{demo}', '{key}'"):
            try:
                if array.frames is not None:
                    return array.frames.read(start, stop, threads)
                _refuse_no_numbers(array.dtype)
                values: NDArray[Any] = array.values[start:stop]
                return values
            except DamagedFrameError as error:
                damaged = error
        raise DatasetError(
            f"{self.path}: demo '{demo}': '{key}' at step {start + damaged.frame} cannot be decoded ({damaged}): "
            "write the frame again, or leave the demo out with a filter key"
        ) from damaged

    def pieces(self, demo: str, key: str) -> Iterator[tuple[int, NDArray[Any]]]:
        """Read an array in pieces of at most 32 MB, so that a long demo that compresses well takes no more memory.

        Yields:
            the step at which each piece begins, and its values; nothing for an array without steps.
        """
        length, *step = self.shape(demo, key)
        rows = max(1, PIECE_BYTES // max(1, math.prod(step) * self.dtype(demo, key).itemsize))
        for start in range(0, length, rows):
            yield start, self.read(demo, key, start, min(start + rows, length))

    # ---- metadata --------------------------------------------------------------------------------

    @property
    def env_meta(self) -> dict[str, Any]:
        """Environment of the demos: the attribute ``env_args``; {} if it is missing."""
        with self.reading("data"):
            text = self._data.attrs.get("env_args")
        if text is None:
            return {}
        try:
            meta = json_value(text, MAX_SETTINGS)
        except (TypeError, ValueError, RecursionError):
            meta = None
        if not isinstance(meta, dict):
            raise DatasetError(
                f"{self.path}: attribute 'env_args' of group 'data' is not a JSON object (begins {str(text)[:40]!r}): "
                "write one with env_name, type, env_kwargs"
            )
        check_depth(meta, f"{self.path}: attribute 'env_args' of group 'data'")
        kwargs = meta.get("env_kwargs")
        for key, words in wrong_env_args(meta):
            raise DatasetError(
                f"{self.path}: '{key}' in attribute 'env_args' of group 'data' {words}"
            )
        return {**meta, "env_kwargs": {}} if "env_kwargs" in meta and kwargs is None else meta

    @property
    def control_freq(self) -> float | None:
        """Control rate in Hz at which the demos were recorded; None if the file does not record it."""
        return rate_of(self.file_attrs.get("control_freq"), self.env_meta)

    @property
    def file_attrs(self) -> dict[str, Any]:
        """Attributes of the group ``data``."""
        with self.reading("data"):
            return {_name(name): _plain(value) for name, value in self._data.attrs.items()}

    def attrs(self, demo: str, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Return all attributes of a demo, or only those in ``names``, as a simulator's model takes long to read."""
        group = self._group(demo)
        with self.reading(f"demo '{demo}'"):
            wanted = list(group.attrs) if names is None else [n for n in names if n in group.attrs]
            return {_name(name): _plain(group.attrs[name]) for name in wanted}

    def success(self, demo: str) -> bool | None:
        """Return true if a demo solves its task, by its attribute ``success``; None if the attribute is missing.

        Raises:
            DatasetError: the attribute is not a single value.
        """
        said = self.attrs(demo, ["success"]).get("success")
        if said is None:
            return None
        with self.reading(f"demo '{demo}', attribute 'success'"):
            if np.size(said) != 1:
                raise ValueError(f"it is {str(said)[:40]!r}, not true or false")
            return bool(said)

    # ---- access ----------------------------------------------------------------------------------

    def _group(self, demo: str) -> h5py.Group:
        if self._demo is not None and self._demo[0] == demo:
            return self._demo[1]
        with self.reading(f"demo '{demo}'"):
            group = self._data.get(demo)
            if isinstance(group, h5py.Group):
                self._demo = demo, group
                self._arrays = {}
                return group
            names = list(self._data)
        if demo in names:
            raise DatasetError(
                f"{self.path}: 'data/{demo}' is not a group of arrays: it is damaged; copy or collect it again"
            )
        raise DatasetError(f"{self.path}: there is no demo '{demo}'; {nearest(demo, names)}")

    def _array(self, demo: str, key: str) -> _Array:
        group = self._group(demo)
        if key in self._arrays:
            return self._arrays[key]
        with self.reading(f"demo '{demo}', '{key}'"):
            found = group.get(key)
            if isinstance(found, h5py.Dataset) and found.shape:
                array = self._arrays[key] = _described(found)
                return array
            prefix, _, name = key.rpartition("/")
            siblings = self.obs_keys(demo, prefix) if prefix else sorted(group)
        place = f"'{prefix}/'" if prefix else "the demo"
        raise DatasetError(
            f"{self.path}: demo '{demo}' has no '{key}' ({place}: {nearest(name, siblings)}): "
            "correct the key, or leave the demo out with a filter key"
        )

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Convert h5py's errors for damaged data to a DatasetError; ``what`` names what is read."""
        try:
            yield
        except (
            OSError,
            RuntimeError,
            LookupError,
            ValueError,
            TypeError,
            ArithmeticError,
            MemoryError,
        ) as error:
            raise DatasetError(
                f"{self.path}: {what} cannot be read: {DAMAGED} ({error})"
            ) from error


_ENV_ARGS: dict[str, tuple[type, str]] = {
    "env_kwargs": (dict, "a JSON object, such as {}"),
    "env_name": (str, "a text"),
    "type": (int, "a whole number"),
    "wrappers": (list, "a list, such as []"),
}


def rate_of(said: Any, env_meta: Mapping[str, Any]) -> float | None:
    """Return the rate ``said`` in Hz, or the one in the environment's arguments; None if neither is valid."""
    kwargs = env_meta.get("env_kwargs")
    in_env = kwargs.get("control_freq") if isinstance(kwargs, dict) else None
    for rate in (said, in_env):
        if isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < math.inf:
            return float(rate)
    return None


def wrong_env_args(meta: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each key of an environment's description with a wrong type, and the advice for it."""
    for key, (kind, words) in _ENV_ARGS.items():
        if meta.get(key) is not None and type(meta[key]) is not kind:
            yield key, f"is {str(meta[key])[:40]!r}: write {words}"


def _refuse_no_numbers(dtype: np.dtype[Any]) -> None:
    """Refuse values that are not numbers of at most 64 bits, such as text, records and complex numbers."""
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise ValueError(f"its values are {dtype}; expected numbers of at most 64 bits")


def shape_and_dtype(array: h5d.DatasetID) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and type of an array with one HDF5 call each, because such calls are slow for short arrays.

    Raises:
        ValueError: the size in the header is far larger than the stored data could unpack to, as in a damaged or
            malicious file. No memory is allocated.
    """
    shape, dtype = tuple(map(int, array.shape)), np.dtype(array.dtype)
    claimed = math.prod(max(size, 1) for size in shape) * dtype.itemsize
    if claimed > _ALWAYS_BYTES:
        stored = array.get_storage_size()
        if claimed > _MOST_RATIO * stored:
            raise ValueError(
                f"shape {shape} of {dtype} claims {claimed / 2**30:.3g} GiB, "
                f"but {stored / 2**20:.3g} MiB are stored"
            )
    return shape, dtype


def _described(values: h5py.Dataset) -> _Array:
    shape, dtype = shape_and_dtype(values.id)
    frame = storage_of(values).frame if dtype.kind == "O" else None
    if frame is not None:
        return _Array(values, (*shape, *frame), np.dtype(np.uint8), FrameReader(values))
    return _Array(values, shape, dtype, None)


def is_hdf5(path: Path) -> bool:
    """Return true if a path should be opened as HDF5, including damaged files with such a name."""
    if path.suffix in (".hdf5", ".h5", ".partial") and path.is_file():
        return True
    return path.is_file() and (not os.access(path, os.R_OK) or h5py.is_hdf5(path))


def _open(path: Path, swmr: bool) -> h5py.File:
    if not path.exists():
        left = unfinished_words(path)
        if left:
            raise DatasetError(f"{path}: there is no such file; {left}")
        raise DatasetError(
            no_such(path, remedy="correct the path, or collect or download the data first")
        )
    refuse_interrupted(path)
    try:
        file = _open_either_way(path, swmr)
        _keep_little(file)
        return file
    except PermissionError as error:
        raise DatasetError(
            f"{path}: this user has no permission to read it: change its permissions (chmod)"
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        if isinstance(error, BlockingIOError) or (
            "unable to lock file" in reason and is_being_written(path)
        ):
            raise DatasetError(
                f"{path}: another process is changing it: try again when that process has ended"
            ) from error
        with path.open("rb") as file:
            is_hdf5 = file.read(8) == b"\x89HDF\r\n\x1a\n"
        if is_hdf5:
            raise DatasetError(f"{path}: {DAMAGED} ({reason})") from error
        raise DatasetError(
            diagnosis(path) or f"{path}: is not an HDF5 file: name a demonstration file (.hdf5)"
        ) from error


def _open_either_way(path: Path, swmr: bool) -> h5py.File:
    try:
        return ConfinedFile(path, "r", swmr=swmr)
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        # A process can open a file in one mode only, and this process may already have opened the file.
        if "SWMR" not in str(error):
            raise
        return ConfinedFile(path, "r", swmr=not swmr)


def _keep_little(file: h5py.File) -> None:
    """Limit HDF5's metadata cache.

    HDF5 would keep up to 32 MB of metadata, even of arrays that are opened only once. Reading metadata again takes no
    noticeable time.
    """
    config = file.id.get_mdc_config()
    config.set_initial_size = True
    config.initial_size = config.max_size = _RECORDS_BYTES
    config.min_size = _RECORDS_BYTES // 2
    file.id.set_mdc_config(config)


def _name(name: str | bytes) -> str:
    """Return the name of an attribute, which h5py returns as bytes if it is not UTF-8."""
    return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")


def _plain(value: Any) -> Any:
    """Convert an attribute to text, number, bool or array; structured values, which no reader uses, become text."""
    if getattr(value, "dtype", np.dtype(float)).kind == "V":
        return str(value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.item() if isinstance(value, np.generic) else value


def outcomes(file: DemoFile, demos: Sequence[str]) -> dict[str, bool | None]:
    """Return for each demo true if it solves its task, false if not, None if unknown.

    The attribute ``success`` decides. Without it, rewards decide if they are all 0 or 1 and some demo has a 1: other
    rewards measure how good a step is, and rewards that are all 0 may just not have been recorded.
    """
    said = {demo: file.success(demo) for demo in demos}
    silent = [demo for demo, success in said.items() if success is None]
    if all(file.has(demo, "rewards") for demo in silent):
        rewarded = {demo: _is_rewarded(file, demo) for demo in silent}
        if None not in rewarded.values() and any(rewarded.values()):
            said |= rewarded
    return said


def _is_rewarded(file: DemoFile, demo: str) -> bool | None:
    """Return true if a demo has a reward of 1, false if all its rewards are 0, None if it has other rewards."""
    is_rewarded = False
    for _, rewards in file.pieces(demo, "rewards"):
        if not np.isin(rewards, (0, 1)).all():
            return None
        is_rewarded = is_rewarded or bool((rewards == 1).any())
    return is_rewarded
