"""Rows of a store that stay in their files."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from imitate.data.fields import SCALARS, Field, read_steps, scalar_source
from imitate.data.hdf5_format import DAMAGED, DatasetFile
from imitate.errors import DatasetError

if TYPE_CHECKING:
    from imitate.data.store import Demo

_MAX_PLACES = 2**16


class _Place(NamedTuple):
    """Where an array that lies in the file in one piece begins."""

    offset: int
    row_bytes: int
    dtype: np.dtype[Any]


class FileRows:
    """Reads rows from files; each process opens its own handles, on first use.

    Arrays that lie in the file in one piece, as robomimic and we write them, are read from there directly, which takes
    a twentieth of the time that HDF5 needs; compressed and chunked ones through HDF5.

    Args:
        paths: the files.
        demos: of the store.
        demo_start: (number of demos,) first row of each.
        swmr: how files are opened.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        demos: Sequence[Demo],
        demo_start: NDArray[np.int64],
        swmr: bool,
    ) -> None:
        self._paths = list(paths)
        self._demos = demos
        self._demo_start = demo_start
        self._swmr = swmr
        self._forget()

    def _forget(self) -> None:
        self._process = os.getpid()
        self._files: dict[int, DatasetFile] = {}
        self._descriptors: dict[int, Any] = {}
        self._places: dict[tuple[int, str], _Place | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["_files"], state["_descriptors"], state["_places"], state["_process"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def read(self, field: Field, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Fill ``out`` (M, ...) with ``rows`` (M,), which are sorted and each there once."""
        if self._process != os.getpid():
            self._forget()  # HDF5's handles do not survive a fork
        number = np.searchsorted(self._demo_start, rows, side="right") - 1
        begins = np.flatnonzero(
            (np.diff(rows, prepend=-2) != 1) | (np.diff(number, prepend=-1) != 0)
        )
        ends = np.append(begins[1:], len(rows))
        demos = number[begins]
        starts = rows[begins] - self._demo_start[demos]
        for demo, start, begin, end in zip(
            demos.tolist(), starts.tolist(), begins.tolist(), ends.tolist(), strict=True
        ):
            self._read_run(demo, field, start, out[begin:end])

    def _read_run(self, demo: int, field: Field, start: int, out: NDArray[Any]) -> None:
        try:
            place = self._places[demo, field.key]
        except KeyError:
            place = self._find(demo, field)
        if place is None:
            stop = start + len(out)
            out[...] = read_steps(self._file(demo), self._demos[demo].name, field, start, stop)
            return
        direct = place.dtype == out.dtype and out.flags.c_contiguous
        values = out if direct else np.empty(out.shape, dtype=place.dtype)
        source = self._demos[demo].source
        at = place.offset + start * place.row_bytes
        if os.preadv(self._descriptors[source].fileno(), [values.data], at) != values.nbytes:
            raise DatasetError(
                f"{self._paths[source]}: demo '{self._demos[demo].name}', '{field.key}' cannot be read: {DAMAGED}"
            )
        if not direct:
            out[...] = values

    def _find(self, demo: int, field: Field) -> _Place | None:
        """Where a field's array lies, if in one piece."""
        key: str | None = field.key
        if field.key in SCALARS:
            key = scalar_source(self._file(demo), self._demos[demo].name, field.key)
        place = None if key is None else self._place_of(demo, key, field)
        if len(self._places) >= _MAX_PLACES:
            self._places.clear()
        self._places[demo, field.key] = place
        return place

    def _place_of(self, demo: int, key: str, field: Field) -> _Place | None:
        file, name = self._file(demo), self._demos[demo].name
        array = file.array(name, key)
        with file.reading(f"demo '{name}', '{key}'"):
            offset = array.id.get_offset()
            in_one_piece = array.chunks is None and not array.is_virtual and array.external is None
        dtype = file.dtype(name, key)
        if offset is None or not in_one_piece or dtype.kind not in "fiub":
            return None
        source = self._demos[demo].source
        if source not in self._descriptors:
            self._descriptors[source] = self._paths[source].open("rb", buffering=0)
        return _Place(offset, math.prod(field.shape) * dtype.itemsize, dtype)

    def _file(self, demo: int) -> DatasetFile:
        source = self._demos[demo].source
        if source not in self._files:
            self._files[source] = DatasetFile(self._paths[source], swmr=self._swmr)
        return self._files[source]
