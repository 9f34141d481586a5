"""Locks on files, which the operating system frees when their process ends, however it ends."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from imitate.system.plain_files import open_plain


def lock(
    file: Any,
    *,
    wait: bool = False,
    shared: bool = False,
    by_process: bool = False,
    needed: bool = True,
) -> None:
    """Lock an open file for this process until it is closed.

    Args:
        file: the file, or its descriptor.
        wait: wait until other processes release the lock.
        shared: take a shared lock.
        by_process: take a lock that forked processes do not hold; closing the file anywhere in this process frees it.
        needed: false: go on where the file system or the operating system has no locks, without excluding others.

    Raises:
        BlockingIOError: another process has the lock, and ``wait`` is false.
        OSError: there are no locks, and ``needed`` is true.
    """
    try:
        import fcntl
    except ImportError as error:  # Windows
        if needed:
            raise OSError(errno.ENOLCK, "this system has no locks on files") from error
        return
    take = fcntl.lockf if by_process else fcntl.flock
    try:
        take(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except (BlockingIOError, PermissionError) as error:
        raise BlockingIOError(error.errno, error.strerror) from error
    except OSError:
        if needed:
            raise


def locked(
    path: Path,
    *,
    wait: bool = True,
    shared: bool = False,
    make: bool = True,
    by_process: bool = False,
    needed: bool = True,
) -> IO[bytes]:
    """Open a file and lock it for this process until it is closed.

    Args:
        path: path of the lock file.
        wait: wait until other processes release the lock.
        shared: take a shared lock.
        make: open the file for appending, and create it if needed; false: the file must exist and is not written.
        by_process: as in :func:`lock`.
        needed: as in :func:`lock`.

    Raises:
        BlockingIOError: another process has the lock, and ``wait`` is false.
        FileNotFoundError: the file does not exist, and ``make`` is false.
        OSError: it is not a regular file, or there are no locks and ``needed`` is true.
    """
    # network file systems give an exclusive lock only on a file that is open for writing
    access = os.O_RDWR | os.O_APPEND | os.O_CREAT if make else os.O_RDONLY if shared else os.O_RDWR
    while True:
        file = open(  # noqa: SIM115 - the caller closes it
            path, "a+b" if make else "rb", opener=lambda *_: open_plain(path, access)
        )
        try:
            lock(file, wait=wait, shared=shared, by_process=by_process, needed=needed)
        except OSError:
            file.close()
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # the former owner has renamed or removed it
