"""Memory: free memory, limits on the memory that files claim, and memory that the C library keeps."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.errors import DatasetError

# An array larger than its file by this factor means a damaged header, not compression.
MAX_RATIO, ALWAYS_BYTES = 1100, 2**26


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes that can be allocated before the machine swaps or a container's limit kills the process.

    Args:
        root: root of the file system; tests use another one.

    Returns:
        on Linux what the kernel calls available, or what the tightest control group (version 1 or 2) leaves, if that is
        less: memory that holds cached files counts as free in both. On other systems half of what the machine has.
        Processes that torchrun started together on this machine each get an equal part.
    """
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    try:
        available = 1024 * _named(root / "proc/meminfo", "MemAvailable:")
    except (OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2 // processes
    return max(0, min([available, *_left_in_groups(root)])) // processes


def check_claim(where: str, claimed: int, stored: int) -> None:
    """Refuse data that would take more memory than is free, or than compression explains.

    Args:
        where: file and part of it, for the message.
        claimed: bytes that the data claim to take.
        stored: bytes of its file.

    Raises:
        DatasetError: the data claim too much memory.
    """
    check_ratio(where, claimed, stored)
    check_room(where, claimed)


def check_room(where: str, claimed: int, remedy: str = "read it on a larger machine") -> None:
    """Refuse data that take more memory than is free; see :func:`check_claim`."""
    if claimed > ALWAYS_BYTES and claimed > (free := free_memory()):
        raise DatasetError(
            f"{where} takes {gigabytes(claimed)} of memory, of which {gigabytes(free)} are free: {remedy}"
        )


def check_ratio(where: str, claimed: int, stored: int) -> None:
    """Refuse data so much larger than their file that it must be damaged; see :func:`check_claim`."""
    if claimed > max(ALWAYS_BYTES, MAX_RATIO * stored):
        raise DatasetError(
            f"{where} claims {gigabytes(claimed)} in a file of {gigabytes(stored)}: the file is damaged; copy it again"
        )


def gigabytes(count: int) -> str:
    """Format a number of bytes, such as '1.2 GB'."""
    if count > 10**27:  # the number may come from a damaged file and be too large for a float
        return "more than 10^15 TB"
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= 0.9995 * size:  # rounded to three digits, it is at least one of these units
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"


def _left_in_groups(root: Path) -> Iterator[int]:
    """Yield the bytes left in each control group with a limit, from this process's own to the outermost visible."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mount = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names = ("memory.max", "memory.current", "inactive_file")
            top = mount
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            top = mount / "memory"
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            yield from _left_in(folder, *names)
            if folder == top:
                break


def _left_in(folder: Path, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    try:
        most = int((folder / limit).read_text())
        used = int((folder / usage).read_text())
        used -= _named(folder / "memory.stat", reclaimable)
    except (OSError, ValueError):  # there is no such group, or the limit is the word 'max'
        return
    yield most - used


def _named(path: Path, name: str) -> int:
    """Return the number that follows a name at the start of a line."""
    for line in path.read_text().splitlines():
        words = line.split()
        if words and words[0] == name:
            return int(words[1])
    raise ValueError(f"{path}: no line begins with {name}")


def return_freed_memory() -> None:
    """Return memory that the C library keeps to the kernel. Takes milliseconds. Does nothing without glibc."""
    malloc_trim = (
        getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    )
    if malloc_trim is not None:
        malloc_trim(0)


def read_arrays(path: Path, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Return the named arrays that exist; nothing is unpickled.

    Raises:
        DatasetError: an array claims more than its stored data, than compression explains, or than the free memory.
        OSError, ValueError, zipfile.BadZipFile: it is not a file of arrays, is damaged, or an array contains objects.
    """
    with zipfile.ZipFile(path) as archive:
        present = [name for name in names if f"{name}.npy" in archive.namelist()]
        whole = sum(_claim(archive, f"{name}.npy", path) for name in present)
    check_claim(f"{path}:", whole, path.stat().st_size)
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in present}


def _claim(archive: zipfile.ZipFile, name: str, path: Path) -> int:
    """Return the bytes that an array claims to take; refuse one that claims more than its size in the archive."""
    held = archive.getinfo(name).file_size
    npy: Any = np.lib.format
    with archive.open(name) as file:
        is_first = npy.read_magic(file) == (1, 0)
        read = npy.read_array_header_1_0 if is_first else npy.read_array_header_2_0
        shape, _, dtype = read(file)
    claimed = math.prod(shape) * dtype.itemsize
    if claimed > held:
        raise DatasetError(
            f"{path}: '{name}' claims {claimed} bytes, of which {held} are there: the file is damaged; copy it again"
        )
    return int(claimed)
