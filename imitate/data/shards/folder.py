"""Datasets of shards: the index, and the files that it lists."""

import functools
import hashlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from imitate.config.data_paths import url_of
from imitate.data.download.fetch import (
    cached_path,
    fetch,
    fetch_file,
    fetch_small,
    hold,
    make_room,
    release,
)
from imitate.data.file.fingerprint import CONTENT_VERSION
from imitate.data.shards.index import FORMAT, MAX_BYTES, Shard, ShardIndex
from imitate.errors import DatasetError
from imitate.system.plain_files import read_bytes
from imitate.system.recognition import INDEX_NAME
from imitate.system.text import DownloadBar

_CONNECTIONS = 4
_FILE_ENDINGS = (".hdf5", ".h5")


class ShardFiles(Protocol):
    """Files of a folder of shards."""

    def local(self, shards: Sequence[Shard], stopped: threading.Event | None = None) -> list[Path]:
        """Return local paths of shards, which are kept until they are released.

        Args:
            shards: shards of the folder.
            stopped: event that another thread sets to stop a download, which then raises InterruptedError; None to
                download in the foreground, with a progress bar.

        Raises:
            DatasetError: a shard does not exist, or differs from the index.
        """

    def release(self, shards: Sequence[Shard]) -> None:
        """Allow shards to be removed from the cache."""


@dataclass(frozen=True)
class ShardFolder:
    """A folder of shards.

    Attributes:
        place: path or URL of the folder, used in error messages.
        index: index of the folder.
        files: access to the shard files.
        is_remote: true if the files must be downloaded.
    """

    place: str
    index: ShardIndex
    files: ShardFiles
    is_remote: bool = False

    def parts(
        self, filter_key: str | None = None, demo_limit: int | None = None
    ) -> list[tuple[Shard, list[str]]]:
        """Return the shards with selected demos, and the selected demos of each.

        Args:
            filter_key: mask of the demos; None for all demos.
            demo_limit: largest number of demos of the whole folder, the first ones; None for all.

        Raises:
            DatasetError: no shard has the filter key.
        """
        if filter_key is not None:
            self.index.check_filter_key(filter_key, self.place)
        found: list[tuple[Shard, list[str]]] = []
        left = demo_limit
        for shard in self.index.shards:
            demos = shard.chosen(filter_key)[:left]
            if left is not None:
                left -= len(demos)
            if demos:
                found.append((shard, demos))
        return found

    def fingerprint(self) -> dict[str, Any]:
        """Return digests that identify the content, in the same form as for one file."""
        digest = hashlib.sha256()
        for shard in self.index.shards:
            digest.update(f"{shard.file} {shard.sha256}\n".encode())
        lengths = list(self.index.lengths())
        return {
            "size_bytes": sum(shard.bytes for shard in self.index.shards),
            "num_demos": len(lengths),
            "num_steps": sum(lengths),
            "sha256": digest.hexdigest(),
            "content_version": CONTENT_VERSION,
            "content_sha256": digest.hexdigest(),
        }


@dataclass(frozen=True)
class LocalFiles:
    """Shards in a folder of this machine."""

    folder: Path

    def local(self, shards: Sequence[Shard], stopped: threading.Event | None = None) -> list[Path]:
        """Return the paths of shards, after checking their sizes."""
        return [self._checked(shard) for shard in shards]

    def release(self, shards: Sequence[Shard]) -> None:
        """Do nothing, because the files belong to the user."""

    def _checked(self, shard: Shard) -> Path:
        path = self.folder / shard.file
        try:
            size = path.stat().st_size
        except OSError as error:
            raise DatasetError(
                f"{path}: cannot be read ({error.strerror}), but {INDEX_NAME} names it: copy the whole folder again"
            ) from None
        if size != shard.bytes:
            raise DatasetError(
                f"{path}: has {size} bytes, but {shard.bytes} according to {INDEX_NAME}: it was changed "
                "or cut short: copy it "
                f"again, or write the index again with `imitate dataset index {self.folder} --overwrite`"
            )
        return path


@dataclass(frozen=True)
class RemoteFiles:
    """Shards behind a URL, which are downloaded into the cache and identified by their SHA-256."""

    url: str

    def local(self, shards: Sequence[Shard], stopped: threading.Event | None = None) -> list[Path]:
        """Return the paths of shards in the cache, and download the missing ones."""
        paths = [cached_path(self._url_of(shard), shard.sha256) for shard in shards]
        held = [hold(path) for path in paths]
        missing = [shard for shard, there in zip(shards, held, strict=True) if not there]
        if not missing:
            return paths
        try:
            self._fetch(missing, stopped)
        except BaseException:
            self.release([shard for shard, there in zip(shards, held, strict=True) if there])
            raise
        return paths

    def _fetch(self, missing: Sequence[Shard], stopped: threading.Event | None) -> None:
        """Download and lock either all of the shards or none."""
        size = sum(shard.bytes for shard in missing)
        make_room({shard.sha256 for shard in missing}, size)
        done: list[Shard] = []
        with (
            DownloadBar(
                f"fetching {self.url.rpartition('/')[2]}",
                total=size,
                delay=2,
                disable=None if stopped is None else True,
            ) as bar,
            ThreadPoolExecutor(_CONNECTIONS) as threads,
        ):

            def came(count: int, total: int | None) -> None:
                if stopped is not None and stopped.is_set():
                    raise InterruptedError
                bar.update(count)

            def one(shard: Shard) -> None:
                fetch(self._url_of(shard), shard.sha256, shard.bytes, shard.sha256, came)
                done.append(shard)

            try:
                list(threads.map(one, missing))
            except BaseException:
                threads.shutdown(cancel_futures=True)
                self.release(done)
                raise

    def release(self, shards: Sequence[Shard]) -> None:
        """Allow shards to be removed from the cache."""
        for shard in shards:
            release(cached_path(self._url_of(shard), shard.sha256))

    def _url_of(self, shard: Shard) -> str:
        return f"{self.url}/{shard.file}"


def shards_at(place: str | Path) -> ShardFolder | None:
    """Return the folder of shards at a path or URL; None if the path is no folder of shards or does not exist.

    Raises:
        DatasetError: the index is damaged, or cannot be downloaded.
    """
    url = url_of(place)
    if url is not None:
        return None if url.endswith(_FILE_ENDINGS) else _fetched(url)
    folder = Path(place).expanduser()
    folder = folder.parent if folder.name == INDEX_NAME else folder
    try:
        status = (folder / INDEX_NAME).stat()
    except OSError:
        return None
    return _read(str(folder), status.st_size, status.st_mtime_ns)


def local_file(path: str | Path) -> Path:
    """Return the local path of one dataset file; a file behind a URL is downloaded into the cache.

    Raises:
        DatasetError: the file cannot be downloaded.
    """
    url = url_of(path)
    return Path(path) if url is None else _fetched_file(url)


@functools.lru_cache(maxsize=8)
def _read(folder: str, size: int, changed_ns: int) -> ShardFolder | None:
    """Read and cache an index; ``size`` and ``changed_ns`` are part of the cache key, to notice a changed file."""
    path = Path(folder, INDEX_NAME)
    try:
        content = read_bytes(path, MAX_BYTES)
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror})") from error
    if FORMAT.encode() not in content[:200]:
        return None  # an index.json of another toolkit
    index = ShardIndex.parse(content, str(path))
    return ShardFolder(folder, index, LocalFiles(Path(folder)))


@functools.lru_cache(maxsize=8)
def _fetched(url: str) -> ShardFolder:
    """Download an index only once, so that a process uses a single version of a dataset."""
    place = f"{url}/{INDEX_NAME}"
    index = ShardIndex.parse(fetch_small(place), place)
    return ShardFolder(url, index, RemoteFiles(url), is_remote=True)


@functools.lru_cache(maxsize=256)
def _fetched_file(url: str) -> Path:
    """Download a file only once, so that a process uses a single version of it."""
    with DownloadBar(f"fetching {url.rpartition('/')[2]}", delay=2) as bar:
        return fetch_file(url, bar.received)
