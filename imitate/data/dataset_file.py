"""Datasets of all formats, read as demonstration files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from imitate.data.file.fingerprint import fingerprint
from imitate.data.file.hdf5_format import DemoFile, NoDemosError, is_hdf5
from imitate.data.formats.cached import as_demonstration_file, convertible_format


class DatasetFile(DemoFile):
    """Dataset opened for reading; also a context manager.

    A dataset of another format, such as a LeRobot folder, is converted to a file in the cache and read from there
    (:mod:`imitate.data.formats.cached`).

    Args:
        path: the HDF5 file, or a dataset of another format.
        swmr: open it in HDF5's SWMR mode, so that another process can write to it.

    Attributes:
        path: the path as given, which errors name.
        hdf5_path: the HDF5 file that is read: ``path``, or the converted file.

    Raises:
        DatasetError: raised here and by every method: names what is missing or damaged, in which file and demo.
    """

    def __init__(self, path: str | Path, *, swmr: bool = False) -> None:
        path = Path(path).expanduser()
        foreign = path.exists() and not is_hdf5(path)
        try:
            converted = as_demonstration_file(path) if foreign else None
            super().__init__(path, swmr=swmr, hdf5_path=converted)
        except NoDemosError:
            found = None if foreign else convertible_format(path)
            if found is None:
                raise
            # an HDF5 file in the layout of another toolkit
            super().__init__(path, swmr=swmr, hdf5_path=as_demonstration_file(path, found))

    def fingerprint(self) -> dict[str, Any]:
        """Return digests that distinguish this file's content from others: see :mod:`imitate.data.file.fingerprint`."""
        return fingerprint(self)
