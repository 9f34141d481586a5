"""Locations of the arrays of demos in a file, determined once; contiguous arrays are read without HDF5.

For short demos, HDF5 takes longer to open an array than to read it. So tools that process a whole file open each array
once, record its shape, type and location, and read it directly.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from h5py import h5d, h5t
from numpy.typing import NDArray
from typing_extensions import Self

from imitate.data.file.confined import arrays_below
from imitate.data.file.hdf5_format import DemoFile, shape_and_dtype


class Extent(NamedTuple):
    """Location of an array.

    Attributes:
        shape: (T, ...) shape of the array.
        dtype: type of its values.
        offset: byte offset of the contiguous values in the file; None if only HDF5 can read the array.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int | None


class Extents:
    """Locations of the arrays of all demos; a context manager.

    Args:
        file: the open file, which no process is writing.
    """

    def __init__(self, file: DemoFile) -> None:
        self.file = file
        self._known: dict[str, dict[str, Extent]] = {}
        self._raw = file.hdf5_path.open("rb", buffering=0)
        # if the file begins with a user block, HDF5 returns locations even for arrays that have no location
        self._begins_with_hdf5 = self._raw.read(8) == b"\x89HDF\r\n\x1a\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._raw.close()

    def of(self, demo: str) -> dict[str, Extent]:
        """Return the locations of a demo's arrays by path, sorted. Scalars, which have no steps, are left out.

        Raises:
            DatasetError: the demo does not exist or is damaged.
        """
        if demo not in self._known:
            group = self.file.group(demo)
            with self.file.reading(f"demo '{demo}'"):
                found = {
                    key: self._extent(array, demo, key)
                    for key, array in arrays_below(group.id)
                    if array.shape
                }
            self._known[demo] = dict(sorted(found.items()))
        return self._known[demo]

    def read(self, demo: str, key: str, start: int, stop: int | None) -> NDArray[Any]:
        """Return steps ``start`` to ``stop`` of an array; with ``stop`` None, all steps from ``start`` on.

        Raises:
            DatasetError: the array does not exist or cannot be read.
        """
        extent = self.of(demo).get(key)
        if extent is None or extent.offset is None:
            return self.file.read(demo, key, start, stop)
        stop = extent.shape[0] if stop is None else min(stop, extent.shape[0])
        step_bytes = math.prod(extent.shape[1:]) * extent.dtype.itemsize
        values = np.empty(max(0, stop - start) * step_bytes, dtype=np.uint8)
        with self.file.reading(f"demo '{demo}', '{key}'"):
            self._raw.seek(extent.offset + start * step_bytes)
            if self._raw.readinto(values.data) != len(values):
                raise OSError("the file ends before the array does")
        return values.view(extent.dtype).reshape(-1, *extent.shape[1:])

    def _extent(self, array: h5d.DatasetID, demo: str, key: str) -> Extent:
        shape, dtype = shape_and_dtype(array)
        if dtype.kind == "O":  # for example individually compressed frames
            return Extent(self.file.shape(demo, key), self.file.dtype(demo, key), None)
        # arrays that were never written have no location; arrays that need a conversion are read by HDF5
        num_bytes = math.prod(shape) * dtype.itemsize
        plain = (
            self._begins_with_hdf5
            and dtype.kind in "fiub"
            and array.get_storage_size() == num_bytes > 0
            and array.get_type() == h5t.py_create(dtype, logical=True)
        )
        return Extent(shape, dtype, array.get_offset() if plain else None)
