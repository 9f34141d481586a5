"""Cache of downloaded files: one folder per file, a lock while it is in use, and a common size limit.

``<cache>/remote/<key>/<name>`` is a complete, verified file; its lock is ``<cache>/remote/<key>.lock``. Processes that
read a file share the lock; a process that writes or removes the file has it exclusively.
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
"""Folder of small files that are kept: indexes, and sizes of files."""
_held: dict[Path, tuple[int, int]] = {}
"""File descriptors of the locks on files that this process reads, and how often each lock is held.

The system releases them when the process ends.
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
            _held[path] = os.dup(lock.fileno()), 1  # this process already has the lock
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
    """Lock a file exclusively, so that this process downloads it; create its folder.

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
    """Remove the least recently used files that no process reads, until the others fit within the limit.

    Args:
        keys: keys of the files to download; their existing parts count towards ``size``.
        size: total size of these files in bytes.

    Raises:
        DatasetError: the files do not fit beside the files in use.
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
    """Return size and last use of a downloaded file's folder, which another process may be removing."""
    total = latest = 0
    with suppress(OSError):
        for file in folder.iterdir():
            status = file.stat()
            total += status.st_size
            latest = max(latest, status.st_mtime_ns)
    return total, latest
