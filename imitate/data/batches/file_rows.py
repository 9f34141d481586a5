"""Reading of rows of data that are not loaded into RAM."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from imitate.data.dataset_file import DatasetFile
from imitate.data.file.fields import SCALARS, Field, read_steps, scalar_source
from imitate.data.file.hdf5_format import DAMAGED
from imitate.errors import DatasetError

READ_DIRECTLY = ("raw", "chunked")
"""Storage kinds that need no decoding."""
Decoded = Mapping[tuple[int, str], tuple[Path, int]]
"""Maps (file index, key) to the cache file with this array's decoded rows, and to the row of the store it begins with.
"""
KEPT_PLACES = 65536
"""Largest number of arrays whose locations a process caches."""


@dataclass(frozen=True)
class DemoOrigin:
    """Origin of a demo of a store.

    Attributes:
        source: index of the demo's file.
        name: name of the demo in the file.
        length: number of steps.
    """

    source: int
    name: str
    length: int


class _Place(NamedTuple):
    """Location of an array that is stored contiguously in a file."""

    path: Path
    offset: int
    row_bytes: int
    dtype: np.dtype[Any]


class FileRows:
    """Reader of rows from files. Each process opens its own handles on first use.

    Contiguous arrays, as written by robomimic and this package, are read directly from the file, which takes a
    twentieth of the time that HDF5 needs. Compressed arrays that were decoded into a separate file are also read
    directly; HDF5 reads all others. Direct reading is as fast as a memory map if the file is in the page cache, and
    faster if not, because a window is one request. It needs no memory except for the batch.

    Args:
        paths: the files.
        demos: demos of the store.
        demo_start: (number of demos,) first row of each demo.
        decoded: files with decoded arrays.
        swmr: open files in SWMR mode.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        demos: Sequence[DemoOrigin],
        demo_start: NDArray[np.int64],
        decoded: Decoded,
        swmr: bool,
    ) -> None:
        self._paths = list(paths)
        self._demos = demos
        self._demo_start = demo_start
        self._decoded = decoded
        self._swmr = swmr
        self._forget()

    def _forget(self) -> None:
        self._process = os.getpid()
        self._files: dict[int, DatasetFile] = {}
        self._descriptors: dict[Path, Any] = {}
        self._places: dict[tuple[int, str], _Place | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["_files"], state["_descriptors"], state["_places"], state["_process"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def read(self, field: Field, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Read ``rows`` (M,) into ``out`` (M, ...); runs of consecutive rows are fastest."""
        if self._process != os.getpid():
            self._forget()  # HDF5 handles are invalid after a fork
        through_hdf5 = []
        for demo, start, begin, end in self._runs(rows):
            place = self._place(demo, field)
            if place is None:
                through_hdf5.append(np.arange(begin, end))
            elif end - begin == 1 and begin > 0 and rows[begin] == rows[begin - 1]:
                out[begin] = out[begin - 1]  # padding
            else:
                self._read_directly(place, demo, field, start, out[begin:end])
        if through_hdf5:
            at = np.concatenate(through_hdf5)
            unique, inverse = np.unique(rows[at], return_inverse=True)
            values = np.empty((len(unique), *out.shape[1:]), dtype=out.dtype)
            for demo, start, begin, end in self._runs(unique):
                file, name = self._file(demo), self._demos[demo].name
                values[begin:end] = read_steps(file, name, field, start, start + end - begin)
            out[at] = values[inverse]

    def _runs(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, int, int, int]]:
        """Split rows into runs within a demo.

        Yields for each run the index of the demo, the step of the first row, and begin and end of the run in ``rows``.
        """
        number = np.searchsorted(self._demo_start, rows, side="right") - 1
        steps = np.diff(rows, prepend=rows[:1])  # 0 for the first row, so it begins a run
        begins = np.flatnonzero((steps != 1) | (np.diff(number, prepend=number[:1]) != 0))
        ends = np.append(begins[1:], len(rows))
        demos = number[begins]
        starts = rows[begins] - self._demo_start[demos]
        yield from zip(demos.tolist(), starts.tolist(), begins.tolist(), ends.tolist(), strict=True)

    def _read_directly(
        self, place: _Place, demo: int, field: Field, start: int, out: NDArray[Any]
    ) -> None:
        direct = place.dtype == out.dtype and out.flags.c_contiguous
        values = out if direct else np.empty(out.shape, dtype=place.dtype)
        at = place.offset + start * place.row_bytes
        if os.preadv(self._descriptor(place.path), [values.data], at) != values.nbytes:
            raise DatasetError(
                f"{place.path}: demo '{self._demos[demo].name}', '{field.key}' cannot be read: {DAMAGED}"
            )
        if not direct:
            out[...] = values

    def _place(self, demo: int, field: Field) -> _Place | None:
        """Return the location of a field's array, or None if it is not contiguous."""
        found = demo, field.key
        if found not in self._places:
            if len(self._places) >= KEPT_PLACES:
                self._places.clear()
            self._places[found] = self._find(demo, field)
        return self._places[found]

    def _find(self, demo: int, field: Field) -> _Place | None:
        source = self._demos[demo].source
        if (source, field.key) in self._decoded:
            path, first_row = self._decoded[source, field.key]
            offset = int(self._demo_start[demo] - first_row) * field.step_bytes
            return _Place(path, offset, field.step_bytes, field.dtype)
        key: str | None = field.key
        if field.key in SCALARS:
            key = scalar_source(self._file(demo), self._demos[demo].name, field.key)
        return None if key is None else self._find_in_hdf5(demo, key, field)

    def _find_in_hdf5(self, demo: int, key: str, field: Field) -> _Place | None:
        file, name = self._file(demo), self._demos[demo].name
        array = file.array(name, key)
        with file.reading(f"demo '{name}', '{key}'"):
            # HDF5 may return a location even for an array that was never written
            written = array.id.get_storage_size() == array.nbytes
            offset = array.id.get_offset() if written else None
        dtype = file.dtype(name, key)
        if offset is None or file.storage(name, key) != "raw" or dtype.kind not in "fiub":
            return None
        return _Place(file.hdf5_path, offset, math.prod(field.shape) * dtype.itemsize, dtype)

    def _descriptor(self, path: Path) -> int:
        if path not in self._descriptors:
            try:
                self._descriptors[path] = path.open("rb")
            except OSError as error:
                raise DatasetError(
                    f"{path}: cannot be opened ({error.strerror}), although it existed when the training "
                    "began: start the training again"
                ) from error
        return int(self._descriptors[path].fileno())

    def _file(self, demo: int) -> DatasetFile:
        source = self._demos[demo].source
        if source not in self._files:
            self._files[source] = DatasetFile(self._paths[source], swmr=self._swmr)
        return self._files[source]
