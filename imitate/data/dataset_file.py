"""Datasets of every format, read as demonstration files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from imitate.data.file.fingerprint import fingerprint
from imitate.data.file.hdf5_format import DemoFile, NoDemosError, is_hdf5
from imitate.data.formats.cached import as_demonstration_file, convertible_format


class DatasetFile(DemoFile):
    """A dataset, open for reading; also a context manager.

    A path of another format, such as a LeRobot folder, is read through a conversion in the cache
    (:mod:`imitate.data.formats.cached`).

    Args:
        path: the HDF5 file, or a dataset of another format.
        swmr: open it such that a process that writes in HDF5's SWMR mode may go on.

    Attributes:
        path: as given; errors name it.
        hdf5_path: the HDF5 file that is read: ``path``, or its conversion.

    Raises:
        DatasetError: here and in every method: what is missing or damaged, in which file and demo.
    """

    def __init__(self, path: str | Path, *, swmr: bool = False) -> None:
        path = Path(path).expanduser()
        foreign = path.exists() and not is_hdf5(path)
        try:
            converted = as_demonstration_file(path) if foreign else None
            super().__init__(path, swmr=swmr, hdf5_path=converted)
        except NoDemosError:
            if foreign or convertible_format(path) is None:
                raise
            # An HDF5 file in the layout of another toolkit.
            super().__init__(path, swmr=swmr, hdf5_path=as_demonstration_file(path))

    def fingerprint(self) -> dict[str, Any]:
        """Return digests that tell this file's content from another's: see :mod:`imitate.data.file.fingerprint`."""
        return fingerprint(self)
