"""Open files of a configuration's datasets, each opened once for all callers."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import Self

from imitate.config import Config
from imitate.data.dataset_file import DatasetFile
from imitate.data.shards.folder import local_file, shards_at
from imitate.system.instructions import TASK_ATTRS, instruction_of

MOST_OPEN = 500
"""Largest number of files that are open at a time; beyond it, the least recently used file is closed."""


@dataclass(frozen=True)
class Outline:
    """Summary of a dataset.

    Attributes:
        env_meta: environment of the demos; {} if the file names no environment.
        control_freq: actions per second; None if the data do not record it.
        filter_keys: names of the masks.
    """

    env_meta: dict[str, Any]
    control_freq: float | None
    filter_keys: frozenset[str]


class DataFiles:
    """The open files of datasets; each is opened on first use and stays open until :meth:`close`.

    A training creates one of these objects for its configuration and passes it on. So observations, filter keys,
    environments, batches and fingerprint all come from one version of a file, even if the file is replaced meanwhile.
    Information that is in the index of a folder of shards is read without opening the shards.

    Args:
        swmr: true to open files in SWMR mode, see :class:`imitate.data.DatasetFile`.
    """

    def __init__(self, *, swmr: bool = False) -> None:
        self.swmr = swmr
        self._open: dict[Path, DatasetFile] = {}

    def open(self, path: str | Path) -> DatasetFile:
        """Return an open file, which the caller must not close; a file behind a URL is downloaded into the cache.

        The file may be closed when :data:`MOST_OPEN` other files have been opened.

        Raises:
            DatasetError: the file cannot be read.
        """
        place = local_file(path)
        file = self._open.pop(place, None) or DatasetFile(place, swmr=self.swmr)
        if len(self._open) >= MOST_OPEN:
            self._open.pop(next(iter(self._open))).close()
        self._open[place] = file  # the last entry is the file that was used last
        return file

    def outline(self, path: str | Path) -> Outline:
        """Return the summary of a dataset, which is one file or a folder of shards.

        Raises:
            DatasetError: the dataset cannot be read.
        """
        shards = shards_at(path)
        if shards is not None:
            index = shards.index
            return Outline(index.env_args, index.control_freq, frozenset(index.filter_keys))
        file = self.open(path)
        return Outline(file.env_meta, file.control_freq, frozenset(file.filter_keys()))

    def instructions(self, path: str | Path, given: str | None = None) -> set[str | None]:
        """Return the instructions of all demos of a dataset, including None if a demo has no instruction.

        Args:
            path: path of the dataset.
            given: instruction that the configuration gives to all demos, or None.
        """
        if given is not None and given.strip():
            return {given.strip()}
        shards = shards_at(path)
        if shards is not None:
            return {said for shard in shards.index.shards for said in shard.language}
        file = self.open(path)
        return {instruction_of(file.attrs(demo, TASK_ATTRS)) for demo in file.demos()}

    def fingerprint(self, path: str | Path) -> dict[str, Any]:
        """Return digests that differ between datasets of different content.

        Raises:
            DatasetError: the dataset cannot be read.
        """
        shards = shards_at(path)
        return self.open(path).fingerprint() if shards is None else shards.fingerprint()

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def data_files(config: Config, given: DataFiles | None = None) -> AbstractContextManager[DataFiles]:
    """Yield the given files; if they are None, open files for the configuration, which are closed at the end."""
    return DataFiles(swmr=config.train.hdf5_use_swmr) if given is None else nullcontext(given)
