"""Fetch whole files into the cache: resumed, retried, verified; locked while in use, and bounded in size.

Cache of downloaded files: one folder per file, a lock while it is in use, and a common size limit.

``<cache>/remote/<key>/<name>`` is a complete, verified file; its lock is ``<cache>/remote/<key>.lock``. Processes that
read a file share the lock; a process that writes or removes the file has it exclusively.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from imitate.data.download.download import sha256_of
from imitate.data.download.transport import Head, RemoteFile, UnreachableError, remote_file
from imitate.data.file.cache import cache_folder, limit_bytes
from imitate.errors import DatasetError
from imitate.system.locks import locked
from imitate.system.plain_files import appended, fresh, give_name, read_json, replaced

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


RETRIES = 5
"""Number of successive attempts without a byte after which a download fails."""
WAIT_S = 1.0
"""Pause before the first retry, doubled each time."""
_MAX_SMALL, _MOST_UNANNOUNCED = 2**30, 2**36
"""Largest size of an index, and of a file whose server does not announce the size."""
_logger = logging.getLogger(__name__)
OnBytes = Callable[[int], None]
"""Called with the number of received bytes."""
Answer = TypeVar("Answer")


def fetch(
    url: str,
    key: str,
    size: int | None,
    sha256: str | None = None,
    on_bytes: OnBytes = lambda count: None,
) -> Path:
    """Return a file of the cache with the content of a URL, and download it if it is not there.

    The file is locked (:func:`imitate.data.download.fetch.hold`) until it is released or the process ends.

    Args:
        url: URL of the file.
        key: identifies the content.
        size: size in bytes; None if the server does not announce it.
        sha256: checksum of the content, if known.
        on_bytes: called for a progress bar; if it raises InterruptedError, the download stops and the received bytes
            are kept.

    Raises:
        DatasetError: the file cannot be downloaded, has another content than expected, or does not fit into the cache.
    """
    path = cached_path(url, key)
    while not hold(path):
        with writing(path):
            if not path.is_file():  # another process has downloaded it meanwhile
                make_room({key}, size or 0)
                _fetch(remote_file(url), url, path, size, sha256, on_bytes)
    return path


def cached_path(url: str, key: str) -> Path:
    """Return the path that a file with this content has in the cache."""
    return remote_folder() / key / urlsplit(url).path.rpartition("/")[2]


def fetch_small(url: str) -> bytes:
    """Return the content of a small file, such as an index; if the server cannot be reached, the copy in the cache.

    Raises:
        DatasetError: the file does not exist, or neither the server nor a copy is available.
    """
    path = remote_folder() / KNOWN / _digest(url)
    known = path.is_file()
    try:
        content = _tried(lambda: _content(remote_file(url), url), 1 if known else RETRIES)
    except UnreachableError as error:
        if not known:
            raise DatasetError(
                f"{url}: cannot be reached ({error}): check host and port, or try again later"
            ) from None
        _logger.warning("%s: cannot be reached (%s): the copy in the cache is used", url, error)
        return path.read_bytes()
    _keep(path, content)
    return content


def head_of(url: str) -> Head:
    """Return size and tag of a file; if the server cannot be reached, those of the last time.

    Raises:
        DatasetError: the file does not exist, or neither the server nor a record of the last time is available.
    """
    path = remote_folder() / KNOWN / f"{_digest(url)}.head"
    known = path.is_file()
    try:
        head = _tried(remote_file(url).head, 1 if known else RETRIES)
    except UnreachableError as error:
        if not known:
            raise DatasetError(
                f"{url}: cannot be reached ({error}): check host and port, or try again later"
            ) from None
        _logger.warning("%s: cannot be reached (%s): the copy in the cache is used", url, error)
        return Head(**read_json(path))
    _keep(path, json.dumps(asdict(head)).encode())
    return head


def fetch_file(url: str, on_bytes: OnBytes = lambda count: None) -> Path:
    """Return a file of the cache with the current content of a URL, and download it if it is not there.

    Raises:
        DatasetError: for the same reasons as in :func:`fetch`.
    """
    head = head_of(url)
    return fetch(url, _digest(f"{url} {head.size} {head.tag}"), head.size, on_bytes=on_bytes)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _keep(path: Path, content: bytes) -> None:
    """Write a small file atomically; if the cache cannot be written, there is just no copy."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as part, fresh(part) as file:
            file.write(content)


def _tried(attempt: Callable[[], Answer], retries: int) -> Answer:
    for number in range(retries):
        with suppress(UnreachableError):
            return attempt()
        time.sleep(WAIT_S * 2**number)
    return attempt()


def _content(file: RemoteFile, url: str) -> bytes:
    parts, size = [], 0
    for _, block in file.blocks(0):
        parts.append(block)
        size += len(block)
        if size > _MAX_SMALL:
            raise DatasetError(f"{url}: is larger than an index can be: correct the address")
    return b"".join(parts)


def _fetch(
    file: RemoteFile,
    url: str,
    path: Path,
    size: int | None,
    sha256: str | None,
    on_bytes: OnBytes,
) -> None:
    """Complete ``<path>.part`` after an earlier attempt, verify it and rename it."""
    part = path.with_name(f"{path.name}.part")
    if size is None:  # without size and tag, an earlier partial file may have other content
        part.unlink(missing_ok=True)
    on_bytes(_bytes_in(part))
    failures, pause_s = 0, WAIT_S
    while True:
        before = _bytes_in(part)
        reason = "the connection ended early"
        if size is not None and before >= size:
            break
        try:
            _append(file, part, size, on_bytes)
            if size is None:
                break
            if _bytes_in(part) >= size:
                continue
        except UnreachableError as error:
            reason = str(error)
        except InterruptedError:  # raised by ``on_bytes``
            raise
        except OSError as error:
            raise _unwritable(error, part) from error
        failures = 1 if _bytes_in(part) > before else failures + 1
        if failures > RETRIES:
            raise DatasetError(
                f"{url}: given up after {RETRIES} retries ({reason}); {_bytes_in(part)} bytes are "
                f"kept in {part}: the same command continues from there"
            )
        time.sleep(pause_s * 2 ** (failures - 1))
    _verify(part, url, size, sha256)
    give_name(part, path)


def _append(file: RemoteFile, part: Path, size: int | None, on_bytes: OnBytes) -> None:
    """Write the received bytes, at most one block beyond the expected size."""
    with appended(part, text=False) as target:
        for at, block in file.blocks(target.tell()):
            if at != target.tell():  # the server starts from the beginning
                on_bytes(at - target.tell())
                target.truncate(at)
                target.seek(at)
            target.write(block)
            target.flush()
            on_bytes(len(block))
            if size is not None and target.tell() > size:
                return
            if size is None and target.tell() > _MOST_UNANNOUNCED:
                part.unlink()
                raise DatasetError(
                    f"{part.name}: the server sends more than {_MOST_UNANNOUNCED} bytes without saying how many there "
                    "are: correct the address"
                )


def _verify(part: Path, url: str, size: int | None, sha256: str | None) -> None:
    """Remove a partial file whose content differs from the expected one.

    Raises:
        DatasetError: the size or the digest differs.
    """
    found = _bytes_in(part)
    words = ""
    if size is not None and found != size:
        words = f"has {found} bytes, expected {size}"
    elif sha256 is not None and (digest := sha256_of(part)) != sha256:
        words = f"its SHA-256 is {digest}, expected {sha256}"
    if words:
        part.unlink()
        raise DatasetError(
            f"{url}: {words}; what came was removed: the file was changed after its index was written, or damaged on "
            "the way: try again, or write the index again"
        )


def _unwritable(error: OSError, part: Path) -> DatasetError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DatasetError(
            f"{part}: the disk is full; {_bytes_in(part)} bytes are kept: free some space, or set "
            "IMITATE_CACHE to a folder with space; the same command continues from there"
        )
    return DatasetError(
        f"{part}: cannot be written ({error.strerror}): set IMITATE_CACHE to a folder with room"
    )


def _bytes_in(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0
