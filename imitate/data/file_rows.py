"""Rows of a store that stay in their files."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from imitate.data.fields import SCALARS, Field, read_steps
from imitate.data.hdf5_format import DatasetFile

if TYPE_CHECKING:
    from imitate.data.store import Demo

_OPEN_ARRAYS = 1024


class FileRows:
    """Reads rows from files; each process opens its own handles, on first use.

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
        self._arrays: OrderedDict[tuple[int, str], h5py.Dataset] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["_files"], state["_arrays"], state["_process"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def read(self, field: Field, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Fill ``out`` (M, ...) with ``rows`` (M,), which are sorted and each there once."""
        if self._process != os.getpid():
            self._forget()  # handles of a forked parent share its file position
        number = np.searchsorted(self._demo_start, rows, side="right") - 1
        begins = np.flatnonzero(
            (np.diff(rows, prepend=-2) != 1) | (np.diff(number, prepend=-1) != 0)
        )
        for begin, end in zip(begins, np.append(begins[1:], len(rows)), strict=True):
            demo = int(number[begin])
            start = int(rows[begin] - self._demo_start[demo])
            out[begin:end] = self._read_run(demo, field, start, start + int(end - begin))

    def _read_run(self, demo: int, field: Field, start: int, stop: int) -> NDArray[Any]:
        if field.key in SCALARS:
            return read_steps(self._file(demo), self._demos[demo].name, field, start, stop)
        array = self._arrays.get((demo, field.key))
        if array is None:
            array = self._file(demo).array(self._demos[demo].name, field.key)
            self._arrays[demo, field.key] = array
            if len(self._arrays) > _OPEN_ARRAYS:
                self._arrays.popitem(last=False)
        else:
            self._arrays.move_to_end((demo, field.key))
        with self._file(demo).reading(f"demo '{self._demos[demo].name}', '{field.key}'"):
            values: NDArray[Any] = array[start:stop]
        return values.reshape(stop - start, *field.shape)

    def _file(self, demo: int) -> DatasetFile:
        source = self._demos[demo].source
        if source not in self._files:
            self._files[source] = DatasetFile(self._paths[source], swmr=self._swmr)
        return self._files[source]
