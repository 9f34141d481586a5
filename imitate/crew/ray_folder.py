"""Folder of a private Ray cluster, removed with it; one that a killed process left is removed when the next starts."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from imitate.system.plain_files import edited, lock_file

PREFIX = "imitate-ray-"
LOCK = "in_use"
"""File that the owner of the folder keeps locked; the system frees it when the process ends, however it ends."""
YOUNG_S = 60.0
"""Seconds for which a new folder is kept: its owner may not have locked it yet."""


@contextmanager
def private_folder() -> Iterator[str]:
    """Yield a new folder, which is removed at the end, and remove those left by ended processes of this user."""
    _remove_left()
    folder = tempfile.mkdtemp(prefix=PREFIX)
    try:
        with lock_file(Path(folder, LOCK)) as lock:
            with suppress(
                OSError
            ):  # a file system without locks: nobody else can lock and remove it either
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(
            OSError
        ):  # it belongs to another user, is in use, was removed meanwhile, or has no lock
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with edited(folder / LOCK) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(lock.fileno()).st_mtime > YOUNG_S:
                    shutil.rmtree(folder, ignore_errors=True)
