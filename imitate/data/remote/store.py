"""The cache of fetched files: one folder for each, a lock while it is in use, and a bound on all of them.

``<cache>/remote/<key>/<name>`` is a whole, verified file; its lock is ``<cache>/remote/<key>.lock``. A process that
reads a file holds the lock together with others; it is taken alone to write or to remove the file.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from imitate.data.file.cache import cache_folder, limit_bytes, locked
from imitate.errors import DatasetError

KNOWN = "known"
"""Folder of small things that are kept: indexes, and sizes of files."""
_held: dict[Path, tuple[int, int]] = {}
"""File descriptors of the locks on files that this process reads, and how often each is held.

The system frees them when the process ends.
"""
_guard = threading.Lock()


def remote_folder() -> Path:
    """Return the folder of fetched files."""
    return cache_folder("remote")


def hold(path: Path) -> bool:
    """Keep a fetched file from being removed until :func:`release`; False where it is not there.

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
        except OSError:  # a cache that may only be read: nobody removes anything from it
            return path.is_file()
        if not path.is_file():  # removed meanwhile
            lock.close()
            return False
        with suppress(OSError):
            os.utime(path)
        with lock:
            _held[path] = os.dup(lock.fileno()), 1  # holds the lock too
        return True


def release(path: Path) -> None:
    """End a :func:`hold`."""
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
    """Hold the lock of a file alone, which is then fetched by this process; make its folder.

    Raises:
        DatasetError: the cache cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = locked(_lock_of(path.parent.name))
        path.parent.mkdir(exist_ok=True)  # removed by another process before it was locked
    except OSError as error:
        raise DatasetError(
            f"{path.parent}: cannot be written ({error.strerror}): set IMITATE_CACHE to a folder with room"
        ) from error
    with lock:
        yield


def make_room(keys: Collection[str], size: int) -> None:
    """Remove files that were not read for longest, and that nobody reads, until others fit the bound.

    Args:
        keys: of the files that are to be fetched; what is there of them counts as part of ``size``.
        size: their bytes.

    Raises:
        DatasetError: they do not fit beside the files that are in use.
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
            f"{remote_folder()}: is bounded at {limit / 1e9:.3g} GB, of which {total / 1e9:.3g} GB are in use, but "
            f"{size / 1e9:.3g} GB are to be fetched: raise IMITATE_CACHE_GB, or lower train.shard_window"
        )


def _lock_of(key: str) -> Path:
    return remote_folder() / f"{key}.lock"


def size_of(folder: Path) -> tuple[int, int]:
    """Return bytes and latest use of a fetched file's folder, which another process may be removing."""
    total = latest = 0
    with suppress(OSError):
        for file in folder.iterdir():
            status = file.stat()
            total += status.st_size
            latest = max(latest, status.st_mtime_ns)
    return total, latest
