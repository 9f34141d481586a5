"""The folder of files that are made from the user's data and can be made again, and locks on files in it.

``$IMITATE_CACHE``, else ``$XDG_CACHE_HOME/imitate``, else ``~/.cache/imitate``. Files there may be removed when no
training reads them.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from imitate.errors import UserError
from imitate.system.plain_files import open_plain

_LIMIT_GB = 50.0


def cache_folder(kind: str) -> Path:
    """Return the folder for files of one kind: 'frames', 'features', 'datasets'."""
    given = os.environ.get("IMITATE_CACHE")
    if given:
        return Path(given).expanduser() / kind
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "imitate" / kind


def locked(path: Path, *, wait: bool = True, shared: bool = False, make: bool = True) -> IO[bytes]:
    """Open a file and lock it for this process until it is closed.

    Args:
        path: of the lock.
        wait: for others that hold it.
        shared: hold it together with others that do so.
        make: open it for appending, and make it if there is none; else it must be there, and is not written.

    Raises:
        BlockingIOError: another process holds it, and ``wait`` is false.
        FileNotFoundError: if there is none, and ``make`` is false.
        OSError: the file system knows no locks, as two that write would spoil it.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    # Network file systems give an exclusive lock only on a file that is open for writing.
    access = os.O_RDWR | os.O_APPEND | os.O_CREAT if make else os.O_RDONLY if shared else os.O_RDWR
    while True:
        file = open(  # noqa: SIM115 - the caller closes it
            path, "a+b" if make else "rb", opener=lambda *_: open_plain(path, access)
        )
        try:
            fcntl.flock(file, kind | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            file.close()
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # its holder has renamed or removed it


class Hold:
    """A file of the cache in use: other processes do not remove it while this object lives.

    Where the cache may only be read, or knows no locks, nobody removes anything from it. A copy of this object in
    another process holds nothing.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._lock: IO[bytes] | None = None
        with suppress(OSError):
            self._lock = locked(path, shared=True, make=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"_lock": None}


def remove_oldest(files: Iterable[Path], room: float) -> float:
    """Remove the files that were not read for longest until all together take at most ``room`` bytes.

    Files that are in use stay.

    Returns:
        the bytes that are left of them.
    """
    states = {}
    for file in files:
        with suppress(OSError):  # another process has removed it
            states[file] = file.stat()
    total = float(sum(state.st_size for state in states.values()))
    for file in sorted(states, key=lambda file: states[file].st_atime_ns):
        if total <= room:
            break
        with suppress(OSError), locked(file, wait=False, make=False):
            file.unlink()
            total -= states[file].st_size
    return total


def was_read(path: Path) -> None:
    """Note that a file is read now; its time of change stays."""
    with suppress(OSError):  # a cache that may only be read
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


def limit_bytes() -> float:
    """Return the size above which the files of one kind that were not read for longest are removed.

    Raises:
        UserError: ``IMITATE_CACHE_GB`` is no number.
    """
    text = os.environ.get("IMITATE_CACHE_GB", "").strip()
    try:
        limit = float(text) if text else _LIMIT_GB
    except ValueError:
        limit = -1.0
    if not limit >= 0:
        raise UserError(f"IMITATE_CACHE_GB is {text!r}: expected a number of gigabytes, such as 50")
    return limit * 1e9
