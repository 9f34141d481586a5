"""Destinations of shards: a folder of this machine, or a URL."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from imitate.config.data_paths import url_of
from imitate.data.remote.transport import filesystem
from imitate.errors import DatasetError
from imitate.system.plain_files import read_text, write_text


class ShardPlace(Protocol):
    """Destination of shards, to which files are written atomically.

    Attributes:
        name: name for errors.
    """

    name: str

    def workplace(self) -> Path:
        """Return the local folder in which a shard is written before :meth:`keep`."""

    def keep(self, path: Path) -> None:
        """Store a finished file of the local folder."""

    def text(self, name: str) -> str | None:
        """Return the content of a text file, or None if it does not exist."""

    def put(self, name: str, text: str) -> None:
        """Write a text file; a file of that name is replaced."""

    def remove(self, name: str) -> None:
        """Remove a file."""

    def shards(self) -> list[str]:
        """Return the names of the existing HDF5 files, sorted."""


@contextmanager
def place_of(out: str | Path) -> Iterator[ShardPlace]:
    """Open the destination at a path or URL.

    Raises:
        DatasetError: the URL cannot be written to.
    """
    url = url_of(out)
    if url is None:
        yield FolderPlace(Path(out).expanduser())
        return
    if url.startswith(("http://", "https://")):
        raise DatasetError(
            f"{url}: HTTP servers are read only: name a folder, or a URL such as s3://bucket/demos"
        )
    with tempfile.TemporaryDirectory(prefix="imitate-shards-") as folder:
        yield UrlPlace(url, Path(folder))


class FolderPlace:
    """A folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.name = folder, str(folder)

    def workplace(self) -> Path:
        """Return the folder itself, and create it if needed; a shard is renamed when it is complete."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def keep(self, path: Path) -> None:
        """Do nothing, because the file is already there."""

    def text(self, name: str) -> str | None:
        """Return the content of a text file, or None if it does not exist."""
        with suppress(FileNotFoundError):
            return read_text(self._folder / name)
        return None

    def put(self, name: str, text: str) -> None:
        """Write a text file."""
        write_text(self.workplace() / name, text)

    def remove(self, name: str) -> None:
        """Remove a file."""
        (self._folder / name).unlink()

    def shards(self) -> list[str]:
        """Return the names of the existing HDF5 files, sorted."""
        return sorted(path.name for path in self._folder.glob("*.hdf5"))


class UrlPlace:
    """Folder of a remote store that fsspec supports.

    Args:
        url: URL of the folder.
        folder: temporary folder for one shard at a time.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.name, self._folder = url, folder
        self._fs, self._path = filesystem(url)

    def workplace(self) -> Path:
        """Return the temporary folder."""
        return self._folder

    def keep(self, path: Path) -> None:
        """Upload a file, and remove it from this machine."""
        with self._writing():
            self._fs.makedirs(self._path, exist_ok=True)
            self._fs.put_file(str(path), self._at(path.name))
        path.unlink()

    def text(self, name: str) -> str | None:
        """Return the content of a text file, or None if it does not exist."""
        with self._writing():
            try:
                content: bytes = self._fs.cat_file(self._at(name))
            except FileNotFoundError:
                return None
        return content.decode()

    def put(self, name: str, text: str) -> None:
        """Write a text file."""
        with self._writing():
            self._fs.makedirs(self._path, exist_ok=True)
            self._fs.pipe_file(self._at(name), text.encode())

    def remove(self, name: str) -> None:
        """Remove a file."""
        with self._writing():
            self._fs.rm_file(self._at(name))

    def shards(self) -> list[str]:
        """Return the names of the existing HDF5 files, sorted."""
        with self._writing():
            try:
                found: list[Any] = self._fs.ls(self._path, detail=False)
            except FileNotFoundError:
                return []
        names = (str(path).rstrip("/").rpartition("/")[2] for path in found)
        return sorted(name for name in names if name.endswith(".hdf5"))

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except DatasetError:
            raise
        except Exception as error:  # the package of each store has its own exceptions
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise DatasetError(
                f"{self.name}: cannot be written ({reason}): check the credentials of its store; "
                "the same command continues after the existing shards"
            ) from error
