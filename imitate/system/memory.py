"""Free memory, checks that the data of a file fit into memory, and release of unused memory."""

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
        on Linux the memory that the kernel reports as available, or that the tightest control group (version 1 or 2)
        leaves, if that is less; cached files count as free in both. On other systems half of the machine's memory.
        If torchrun started several processes on this machine, each gets an equal share.
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
        where: file and array, for the error message.
        claimed: size of the data in bytes, according to the file's header.
        stored: size of the file in bytes.

    Raises:
        DatasetError: the data would take too much memory.
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
    """Refuse data that are so much larger than their file that the file must be damaged; see :func:`check_claim`."""
    if claimed > max(ALWAYS_BYTES, MAX_RATIO * stored):
        raise DatasetError(
            f"{where} claims {gigabytes(claimed)} in a file of {gigabytes(stored)}: the file is damaged; copy it again"
        )


def gigabytes(count: int) -> str:
    """Format a number of bytes, such as '1.2 GB'."""
    if count > 10**27:  # a number from a damaged file may be too large for a float
        return "more than 10^15 TB"
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= 0.9995 * size:  # at least 1 of this unit after rounding to three digits
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"


def _left_in_groups(root: Path) -> Iterator[int]:
    """Yield the free bytes of each control group with a limit, from the process's own group to the outermost one."""
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
    except (OSError, ValueError):  # no such group, or the limit is 'max'
        return
    yield most - used


def _named(path: Path, name: str) -> int:
    """Return the number that follows a name at the start of a line."""
    for line in path.read_text().splitlines():
        words = line.split()
        if words and words[0] == name:
            return int(words[1])
    raise ValueError(f"{path}: expected a line that begins with {name}")


def return_freed_memory() -> None:
    """Give unused memory of the C library back to the system. Takes milliseconds; does nothing without glibc."""
    malloc_trim = (
        getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    )
    if malloc_trim is not None:
        malloc_trim(0)


def read_arrays(path: Path, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Read the named arrays from an ``.npz`` file, by name; arrays that it lacks are left out. Nothing is unpickled.

    Raises:
        DatasetError: an array is larger than its stored data, than compression explains, or than the free memory.
        OSError, ValueError, zipfile.BadZipFile: the file is not an archive of arrays, is damaged, or has an array of
            objects.
    """
    with zipfile.ZipFile(path) as archive:
        present = [name for name in names if f"{name}.npy" in archive.namelist()]
        whole = sum(_claim(archive, f"{name}.npy", path) for name in present)
    check_claim(f"{path}:", whole, path.stat().st_size)
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in present}


def _claim(archive: zipfile.ZipFile, name: str, path: Path) -> int:
    """Return the size of an array in bytes according to its header; refuse an array with less stored data."""
    held = archive.getinfo(name).file_size
    npy: Any = np.lib.format
    with archive.open(name) as file:
        is_first = npy.read_magic(file) == (1, 0)
        read = npy.read_array_header_1_0 if is_first else npy.read_array_header_2_0
        shape, _, dtype = read(file)
    claimed = math.prod(shape) * dtype.itemsize
    if claimed > held:
        raise DatasetError(
            f"{path}: the header of '{name}' names {claimed} bytes, but only {held} are stored: the "
            "file is damaged; copy it again"
        )
    return int(claimed)
