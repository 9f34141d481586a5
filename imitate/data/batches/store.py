"""Demonstrations in memory, with one contiguous array per field over all demos, and a memory pool for batches.

The memory of batches is reused, because allocating some megabytes page by page takes longer than filling them with
images.
"""

import math
import weakref
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.data.batches.file_rows import READ_DIRECTLY, Decoded, DemoOrigin, FileRows
from imitate.data.batches.placement import check_steps, decode_once, place
from imitate.data.dataset_file import DatasetFile, no_demos
from imitate.data.file.cache import Hold
from imitate.data.file.faults import (
    check_bounded,
    check_finite,
    check_length,
    check_numeric,
    check_shape,
    odd_lengths,
)
from imitate.data.file.fields import (
    SCALARS,
    Field,
    check_step_key,
    lay_out,
    read_pieces,
    scalar_source,
)
from imitate.data.formats.cached import held
from imitate.data.shards.data_files import DataFiles
from imitate.errors import DatasetError
from imitate.functional.transfer import to_device
from imitate.system.images import image_type
from imitate.system.memory import free_memory
from imitate.system.text import counted

_SMALLEST_BYTES = 2**17
_MAX_FREE = 4
_MAX_SIZES = 8


class Buffers:
    """Pool of tensors. The memory of a tensor returns to the pool when the tensor and all its views are deleted.

    Attributes:
        pinned: true for memory from which a CUDA device can copy asynchronously. Then torch manages the pool, because
            torch knows when such a copy is finished.
    """

    def __init__(self) -> None:
        self.pinned = False
        self._free: dict[int, list[NDArray[np.uint8]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.pinned = False  # no pinned memory in worker processes, which do not use the device
        self._free = {}

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
        """Return a tensor with undefined values."""
        size = math.prod(shape) * dtype.itemsize
        if size < _SMALLEST_BYTES:
            return torch.from_numpy(np.empty(shape, dtype))
        if self.pinned:
            like = torch.from_numpy(np.empty(0, dtype))
            return torch.empty(shape, dtype=like.dtype, pin_memory=True)
        free = self._free.get(size)
        memory = free.pop() if free else np.empty(size, np.uint8)
        lent = memory.view(dtype).reshape(shape)
        # Only the tensor and its views have a reference to `lent`.
        weakref.finalize(lent, self._take_back, memory).atexit = False
        return torch.from_numpy(lent)

    def _take_back(self, memory: NDArray[np.uint8]) -> None:
        if memory.nbytes not in self._free and len(self._free) >= _MAX_SIZES:
            self._free.clear()
        free = self._free.setdefault(memory.nbytes, [])
        if len(free) < _MAX_FREE:
            free.append(memory)


@dataclass(frozen=True)
class DataSource:
    """A demonstration file and a selection of its demos.

    Attributes:
        path: the HDF5 file.
        filter_key: mask of the demos to use; None for all demos.
        demo_limit: largest number of demos to use, the first ones; None for all.
        weight: sampling weight of each sample of the file, relative to other files.
        lang: instruction of all demos; None if each demo has its own.
        demos: names of the demos to use, in the order of the file; None for all.
        entry: index of the file's entry in ``train.data``; all shards of a folder have the same index.
    """

    path: Path
    filter_key: str | None = None
    demo_limit: int | None = None
    weight: float = 1.0
    lang: str | None = None
    demos: frozenset[str] | None = None
    entry: int = 0

    def chosen(self, file: DatasetFile) -> list[str]:
        """Return the names of the selected demos of the open file."""
        return self.among(file.demos(self.filter_key))

    def among(self, names: Sequence[str]) -> list[str]:
        """Return the selected demos, given the names of the demos in the mask."""
        first = list(names[: self.demo_limit])
        return first if self.demos is None else [name for name in first if name in self.demos]


class Store:
    """All steps of all demos: N rows in the order of the sources and of the demos' names.

    Args:
        sources: files with equal arrays.
        keys: arrays to load, in the order of the packed columns.
        goal_keys: observations whose last value in each demo is stored as the goal.
        cache_mode: arrays in RAM: 'all'; 'low_dim' for all except arrays with two or more dimensions per step; None for
            none; 'auto' for those that fit into free memory. All others are read from the file.
        bounded: action keys whose values must be in [-1, 1].
        files: open files of the sources.

    Attributes:
        packed: (N, D) float32, the columns of all vectors and scalars; None if they are not in RAM.
        apart: (N, ...) values of each field with two or more dimensions per step that is in RAM.
        goals: (number of demos, ...) per goal key.
        demo_start, demo_end: index of the first row of each demo, and index after its last row.
        placement: which fields are in RAM.
        notes: lines for the log: very short demos, and how compressed arrays are read.

    Raises:
        DatasetError: a file has a fault, or files do not fit together.
    """

    def __init__(
        self,
        sources: Sequence[DataSource],
        keys: Sequence[str],
        files: DataFiles,
        *,
        goal_keys: Sequence[str] = (),
        cache_mode: str | None = "all",
        bounded: Collection[str] = (),
    ) -> None:
        self.sources = tuple(sources)
        self.packed: Tensor | None = None
        self.apart: dict[str, Tensor] = {}
        self.goals: dict[str, Tensor] = {}
        self.demos: tuple[DemoOrigin, ...] = ()
        self.notes: list[str] = []
        self._buffers = Buffers()
        self._compressed: set[tuple[int, str]] = set()
        self._holds = [held(files.open(source.path).hdf5_path) for source in sources]
        self.demos = tuple(_demos(files, sources))
        first = self.demos[0]
        self.fields = lay_out(files.open(sources[first.source].path), first.name, keys)
        self._note_short()
        ends = np.cumsum([demo.length for demo in self.demos])
        self.demo_end: NDArray[np.int64] = ends
        self.demo_start: NDArray[np.int64] = ends - [demo.length for demo in self.demos]
        free, path = free_memory(), self.sources[0].path
        left = free - check_steps(len(self), free, path)
        self.placement = place(self.fields, len(self), cache_mode, left, path)
        self._allocate(goal_keys)
        with ThreadPoolExecutor() as threads:
            for number, demo in enumerate(self.demos):
                file = files.open(sources[demo.source].path)
                self._fill(file, number, bounded, threads)
            decoded = self._decode_once(files, threads)
        self.from_file = {
            key: field
            for key, field in self.fields.items()
            if (self.packed is None if field.columns else key not in self.apart)
        }
        self._reader = FileRows(
            [source.path for source in sources], self.demos, self.demo_start, decoded, files.swmr
        )

    def _note_short(self) -> None:
        """Add a line to the notes if some demos are far shorter than most (see :mod:`imitate.data.file.faults`)."""
        short = [
            self.demos[at] for at in odd_lengths([demo.length for demo in self.demos])["short"]
        ]
        if short:
            median = np.median([demo.length for demo in self.demos])
            names = ", ".join(f"{demo.name} ({counted(demo.length, 'step')})" for demo in short[:3])
            self.notes.append(
                f"{counted(len(short), 'demo')} of {len(self.demos)} are very short, the median is {median:.0f} steps: "
                f"{names}{' ...' if len(short) > 3 else ''}; look at them: imitate dataset doctor "
                f"{self.sources[short[0].source].path}"
            )

    def __len__(self) -> int:
        return int(self.demo_end[-1])

    @property
    def num_columns(self) -> int:
        """Number D of packed columns."""
        return max(
            (field.columns.stop for field in self.fields.values() if field.columns), default=0
        )

    @property
    def num_bytes(self) -> int:
        """Memory in bytes that the arrays take."""
        held = [*self.apart.values(), *self.goals.values()]
        if self.packed is not None:
            held.append(self.packed)
        return sum(tensor.nbytes for tensor in held)

    def pin_batches(self) -> None:
        """Gather images into pinned memory from now on."""
        self._buffers.pinned = True

    def to(self, device: torch.device | str) -> None:
        """Move all arrays to a device."""
        if self.from_file:
            raise DatasetError(
                f"{self.sources[0].path}: data that stay in the file ({', '.join(self.from_file)}) cannot be moved to "
                f"{device}: set train.hdf5_cache_mode to 'all', or train.data_on_device to false"
            )
        if self.packed is not None:
            self.packed = self.packed.to(device)
        self.apart = {key: tensor.to(device) for key, tensor in self.apart.items()}
        self.goals = {key: tensor.to(device) for key, tensor in self.goals.items()}

    def replace(self, key: str, values: Tensor, words: str) -> None:
        """Replace the values of a field that is stored separately, for example images by their features.

        Args:
            key: key of the field.
            values: (N, ...), on the device of the field if it was moved to one.
            words: description of the new values in one line, for the notes.
        """
        dtype = values.numpy().dtype
        held = self.apart.get(key)
        self.fields[key] = Field(key, tuple(values.shape[1:]), None, dtype)
        self.apart[key] = values if held is None else values.to(held.device)
        self.from_file.pop(key, None)
        self.placement = self.placement.without(key)
        self.notes.append(words)

    # ---- reading rows ----------------------------------------------------------------------------

    def field(self, key: str, rows: NDArray[np.int64]) -> Tensor:
        """Read ``rows`` (M,) of one field: (M, ...)."""
        field = self.fields[key]
        if field.columns is None or self.packed is None:
            return self.rows(key, rows)
        values = _take(self.packed[:, field.columns], rows)
        return values if field.shape else values[:, 0]

    def columns(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the packed columns (M, D) of ``rows`` (M,)."""
        if self.packed is not None:
            return _take(self.packed, rows)
        unique, inverse = np.unique(rows, return_inverse=True)
        values = np.empty((len(unique), self.num_columns), dtype=np.float32)
        for field in self.fields.values():
            if field.columns:
                part = values[:, field.columns]
                self._reader.read(field, unique, part if field.shape else part[:, 0])
        return torch.from_numpy(values[inverse])

    def rows(self, key: str, rows: NDArray[np.int64]) -> Tensor:
        """Read ``rows`` (M,) of a field that is not among the packed columns: (M, ...)."""
        field = self.fields[key]
        held = self.apart.get(key)
        if held is not None and held.device.type != "cpu":
            return _take(held, rows)
        if held is not None:
            taken = self._buffers.empty((len(rows), *field.shape), field.dtype)
            held.numpy().take(rows, axis=0, mode="clip", out=taken.numpy())
            return taken
        values = self._buffers.empty((len(rows), *field.shape), field.dtype)
        self._reader.read(field, rows, values.numpy())
        return values

    def goal(self, key: str, demos: NDArray[np.int64]) -> Tensor:
        """Return the goals (B, ...) of the demos with the indices ``demos`` (B,)."""
        return _take(self.goals[key], demos)

    # ---- filling ---------------------------------------------------------------------------------

    def _allocate(self, goal_keys: Sequence[str]) -> None:
        if self.placement.packed_in_ram:
            self.packed = torch.empty(len(self), self.num_columns)
        for key in self.placement.apart_in_ram:
            self.apart[key] = _empty(len(self), self.fields[key])
        for key in goal_keys:
            self.goals[key] = _empty(len(self.demos), self.fields[f"obs/{key}"])

    def _fill(
        self, file: DatasetFile, number: int, bounded: Collection[str], threads: Executor
    ) -> None:
        demo, start, end = self.demos[number], self.demo_start[number], self.demo_end[number]
        first = self.demos[0]
        words = f"demo '{first.name}'" + ("" if demo.source == 0 else f" of {self.sources[0].path}")
        for key, field in self.fields.items():
            _check_field(file, demo, field, words)
            if field.columns is None:
                if key in self.apart:
                    rows = self.apart[key].numpy()[start:end]
                    for step, values in read_pieces(file, demo.name, demo.length, field, threads):
                        rows[step : step + len(values)] = values
                elif file.storage(demo.name, key) not in READ_DIRECTLY:
                    self._compressed.add((demo.source, key))
                continue
            for step, values in read_pieces(file, demo.name, demo.length, field):
                if key in bounded:
                    check_bounded(values, file, demo.name, key, step)
                if self.packed is not None:
                    rows = self.packed.numpy()[start + step : start + step + len(values)]
                    rows[:, field.columns] = values.reshape(len(values), -1)
        for key, goal in self.goals.items():
            group = "next_obs" if file.has(demo.name, f"next_obs/{key}") else "obs"
            last = file.read(demo.name, f"{group}/{key}", demo.length - 1, demo.length)
            check_finite(last, file, demo.name, f"{group}/{key}", demo.length - 1)
            goal.numpy()[number] = last[0]

    def _decode_once(self, files: DataFiles, threads: Executor) -> Decoded:
        """Decode compressed arrays that are not in RAM into cache files."""
        decoded = {}
        for source, key in sorted(self._compressed):
            numbers = [n for n, demo in enumerate(self.demos) if demo.source == source]
            demos = {self.demos[number].name: self.demos[number].length for number in numbers}
            file = files.open(self.sources[source].path)
            path, words = decode_once(file, self.fields[key], demos, threads)
            self.notes.append(words)
            if path is not None:
                self._holds.append(Hold(path))
                decoded[source, key] = path, int(self.demo_start[numbers[0]])
        return decoded


def _demos(files: DataFiles, sources: Sequence[DataSource]) -> Iterable[DemoOrigin]:
    for number, source in enumerate(sources):
        file = files.open(source.path)
        names = source.chosen(file)
        if not names and source.demos is None:
            raise no_demos(file, source.filter_key)
        for name in names:
            yield DemoOrigin(number, name, check_length(file, name))


def _check_field(file: DatasetFile, demo: DemoOrigin, field: Field, first: str) -> None:
    if field.key in SCALARS:
        source = scalar_source(file, demo.name, field.key)
        if source is not None:
            step = file.shape(demo.name, source)[1:]
            check_numeric(file, demo.name, source)
            check_shape(file, demo.name, source, demo.length, step, first)
        return
    if not field.key.startswith(("obs/", "next_obs/")):
        check_step_key(file, demo.name, field.key)
    one_number = field.shape in ((), (1,)) and len(file.shape(demo.name, field.key)) == 1
    check_shape(file, demo.name, field.key, demo.length, () if one_number else field.shape, first)
    check_numeric(file, demo.name, field.key)
    dtype = file.dtype(demo.name, field.key)
    if field.columns is None and image_type(dtype) != image_type(field.recorded):
        raise DatasetError(
            f"{file.path}: demo '{demo.name}': '{field.key}' is {dtype}, but {field.recorded} in "
            f"{first}: write both with the same type"
        )


def _empty(count: int, field: Field) -> Tensor:
    return torch.from_numpy(np.empty((count, *field.shape), dtype=field.dtype))


def _take(values: Tensor, rows: NDArray[np.int64]) -> Tensor:
    if values.device.type == "cpu":
        # numpy gathers rows in half the time of torch, and in a third if the row indices are not checked
        return torch.from_numpy(values.numpy().take(rows, axis=0, mode="clip"))
    index: Any = to_device(torch.from_numpy(rows), values.device)
    return values.index_select(0, index)
