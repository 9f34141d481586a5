"""The folder of files that are made from the user's data and can be made again, and locks on files in it.

``$IMITATE_CACHE``, else ``$XDG_CACHE_HOME/imitate``, else ``~/.cache/imitate``. Files there may be removed when no
training reads them.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import IO


def cache_folder(kind: str) -> Path:
    """Return the folder for files of one kind: 'frames', 'datasets'."""
    given = os.environ.get("IMITATE_CACHE")
    if given:
        return Path(given).expanduser() / kind
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "imitate" / kind


def locked(path: Path, *, wait: bool = True) -> IO[bytes]:
    """Open a file for appending and lock it for this process until it is closed; make it if there is none.

    Raises:
        BlockingIOError: another process holds it, and ``wait`` is false.
        OSError: the file system knows no locks, as two that write would spoil it.
    """
    while True:
        file = path.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            file.close()
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # its holder has renamed or removed it
