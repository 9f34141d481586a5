"""Cache of downloaded files: one folder per file, a lock while it is in use, and a common size limit.

``<cache>/remote/<key>/<name>`` is a complete, verified file; its lock is ``<cache>/remote/<key>.lock``. Processes that
read a file share the lock; a process that writes or removes the file has it exclusively. If the files exceed a common
size limit, the least recently used ones are removed.
"""

import hashlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from imitate.data.download.download import (
    ELSEWHERE,
    RETRIES,
    Download,
    OnBytes,
    UnreachableError,
    opened,
    wait,
)
from imitate.data.file.cache import cache_folder, limit_bytes
from imitate.errors import DatasetError
from imitate.system.plain_files import fresh, locked, parsed_json, replaced

KNOWN = "known"
"""Name of the folder for copies of indexes and for sizes of files, which are never removed."""
_MAX_SMALL = 2**30
"""Largest size of an index in bytes."""
_logger = logging.getLogger(__name__)
_held: dict[Path, tuple[int, int]] = {}
"""File descriptors of the locks on files that this process reads, and how often each lock was taken.

The system releases the locks when the process ends.
"""
_guard = threading.Lock()


def remote_folder() -> Path:
    """Return the folder of fetched files."""
    return cache_folder("remote")


def hold(path: Path) -> bool:
    """Protect a downloaded file from removal until :func:`release`; return False if it does not exist.

    Args:
        path: ``<remote_folder()>/<key>/<name>``.
    """
    with _guard:
        if path in _held:
            descriptor, count = _held[path]
            _held[path] = descriptor, count + 1
            return True
        if not path.is_file():
            return False
        try:
            lock = locked(_lock_of(path.parent.name), shared=True)
        except OSError:  # the cache is read-only, so no process removes files from it
            return path.is_file()
        if not path.is_file():  # removed meanwhile
            lock.close()
            return False
        with suppress(OSError):
            os.utime(path)
        with lock:
            _held[path] = os.dup(lock.fileno()), 1  # the duplicate keeps the lock
        return True


def release(path: Path) -> None:
    """End the protection by :func:`hold`."""
    with _guard:
        if path not in _held:
            return
        descriptor, count = _held[path]
        if count > 1:
            _held[path] = descriptor, count - 1
            return
        del _held[path]
        os.close(descriptor)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Lock a file exclusively, so that only this process downloads it; create its folder.

    Raises:
        DatasetError: the cache cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = locked(_lock_of(path.parent.name))
        path.parent.mkdir(exist_ok=True)  # may have been removed before the lock
    except OSError as error:
        raise DatasetError(
            f"{path.parent}: cannot be written ({error.strerror}): {ELSEWHERE}"
        ) from error
    with lock:
        yield


def make_room(keys: Collection[str], size: int) -> None:
    """Remove the least recently used files that no process reads, until new files fit within the limit.

    Args:
        keys: keys of the files to download.
        size: total size of these files in bytes, including bytes that were downloaded before.

    Raises:
        DatasetError: the files do not fit in addition to the files in use.
    """
    limit = limit_bytes()
    others = {
        folder: size_of(folder)
        for folder in (remote_folder().iterdir() if remote_folder().is_dir() else ())
        if folder.is_dir() and folder.name not in (*keys, KNOWN)
    }
    total = sum(bytes_ for bytes_, _ in others.values())
    for folder in sorted(others, key=lambda folder: others[folder][1]):
        if total + size <= limit:
            return
        with suppress(OSError), locked(_lock_of(folder.name), wait=False):
            shutil.rmtree(folder)
            _lock_of(folder.name).unlink()
            total -= others[folder][0]
    if total + size > limit:
        raise DatasetError(
            f"{remote_folder()}: is limited to {limit / 1e9:.3g} GB, of which {total / 1e9:.3g} GB are in use, but "
            f"{size / 1e9:.3g} GB are to be downloaded: raise IMITATE_CACHE_GB, or lower train.shard_window"
        )


def _lock_of(key: str) -> Path:
    return remote_folder() / f"{key}.lock"


def size_of(folder: Path) -> tuple[int, int]:
    """Return size and time of the last use of a downloaded file's folder; another process may be removing it."""
    total = latest = 0
    with suppress(OSError):
        for file in folder.iterdir():
            status = file.stat()
            total += status.st_size
            latest = max(latest, status.st_mtime_ns)
    return total, latest


def fetch(
    url: str,
    key: str,
    size: int | None,
    sha256: str | None = None,
    on_bytes: OnBytes = lambda count, total: None,
) -> Path:
    """Return the file in the cache with the content of a URL; download it if it is not in the cache.

    The file is locked (:func:`imitate.data.download.fetch.hold`) until it is released or the process ends.

    Args:
        url: URL of the file.
        key: key that identifies the content, the name of the folder in the cache.
        size: size in bytes; None if the server does not announce it.
        sha256: checksum of the content, or None if unknown.
        on_bytes: function for a progress bar, see :class:`imitate.data.download.download.Download`.

    Raises:
        DatasetError: the file cannot be downloaded, has unexpected content, or does not fit into the cache.
    """
    path = cached_path(url, key)
    while not hold(path):
        with writing(path):
            if not path.is_file():  # another process has downloaded the file
                make_room({key}, size or 0)
                # Without a size, a partly downloaded file might be of an older version on the server.
                known = size is not None
                Download(url, path, size, None, sha256, identified=known, on_bytes=on_bytes).run()
    return path


def cached_path(url: str, key: str) -> Path:
    """Return the path in the cache of the file at a URL; ``key`` identifies the file's content."""
    return remote_folder() / key / urlsplit(url).path.rpartition("/")[2]


def fetch_small(url: str) -> bytes:
    """Return the content of a small file such as an index, or its copy in the cache if the server cannot be reached.

    Raises:
        DatasetError: the file does not exist, or neither the server nor a copy is available.
    """
    return _current(url, _digest(url), _small_content)


def fetch_file(url: str, on_bytes: OnBytes = lambda count, total: None) -> Path:
    """Return the file in the cache with the current content of a URL; download it if it is not in the cache.

    If the server cannot be reached, the file of the last download is returned.

    Raises:
        DatasetError: for the same reasons as in :func:`fetch`.
    """
    head = parsed_json(_current(url, f"{_digest(url)}.head", _head), url)
    key = _digest(f"{url} {head['size']} {head['tag']}")
    return fetch(url, key, head["size"], on_bytes=on_bytes)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _current(url: str, name: str, read: Callable[[str], bytes]) -> bytes:
    """Read from the server and keep a copy in the cache; return the copy if the server cannot be reached."""
    path = remote_folder() / KNOWN / name
    known, failures = path.is_file(), 0
    while True:
        try:
            content = read(url)
            break
        except UnreachableError as error:
            failures += 1
            if known and failures > 1:
                _logger.warning(
                    "%s: cannot be reached (%s): the copy in the cache is used", url, error
                )
                return path.read_bytes()
            if failures > RETRIES:
                raise DatasetError(
                    f"{url}: cannot be reached ({error}): check host and port, or try again later"
                ) from None
        wait(failures)
    with suppress(OSError):  # if the cache cannot be written, no copy is kept
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as part, fresh(part) as file:
            file.write(content)
    return content


def _head(url: str) -> bytes:
    with opened(url, head_only=True) as content:
        return json.dumps({"size": content.total, "tag": content.tag}).encode()


def _small_content(url: str) -> bytes:
    with opened(url) as content:
        found = bytearray()
        for block in content.blocks:
            found += block
            if len(found) > _MAX_SMALL:
                raise DatasetError(f"{url}: is larger than an index can be: correct the address")
    if content.total not in (None, len(found)):
        raise UnreachableError("the connection ended early")
    return bytes(found)
