"""Cache folder of derived files that can be rebuilt from the user's data.

The folder is ``$IMITATE_CACHE``, else ``$XDG_CACHE_HOME/imitate``, else ``~/.cache/imitate``. Its files may be removed
when no training reads them.
"""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from imitate.errors import UserError
from imitate.system.plain_files import locked

_LIMIT_GB = 50.0


def cache_folder(kind: str) -> Path:
    """Return the folder for files of one kind: 'frames', 'features', 'datasets'."""
    given = os.environ.get("IMITATE_CACHE")
    if given:
        return Path(given).expanduser() / kind
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "imitate" / kind


class Hold:
    """Mark of a cache file in use: other processes do not remove the file while this object exists.

    No process removes files from a cache that is read-only or supports no locks. A copy of this object in another
    process has no effect.

    Args:
        path: path of the file.
    """

    def __init__(self, path: Path) -> None:
        self._lock: IO[bytes] | None = None
        with suppress(OSError):
            self._lock = locked(path, shared=True, make=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"_lock": None}


def remove_oldest(files: Iterable[Path], room: float) -> float:
    """Remove the least recently used files until all together take at most ``room`` bytes.

    Files in use are kept.

    Returns:
        number of remaining bytes.
    """
    states = {}
    for file in files:
        with suppress(OSError):  # another process removed the file
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
    """Set the access time of a file to now, without changing its modification time."""
    with suppress(OSError):  # the cache is read-only
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


def limit_bytes() -> float:
    """Return the size limit in bytes above which the least recently used files of one kind are removed.

    Raises:
        UserError: ``IMITATE_CACHE_GB`` is not a number.
    """
    text = os.environ.get("IMITATE_CACHE_GB", "").strip()
    try:
        limit = float(text) if text else _LIMIT_GB
    except ValueError:
        limit = -1.0
    if not limit >= 0:
        raise UserError(f"IMITATE_CACHE_GB is {text!r}: expected a number of gigabytes, such as 50")
    return limit * 1e9
