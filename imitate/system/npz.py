"""Reading of ``.npz`` files, with a check of the arrays' sizes before memory is allocated."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.errors import DatasetError
from imitate.system.free_memory import check_claim


def read_arrays(path: Path, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Return the named arrays that exist; nothing is unpickled.

    Raises:
        DatasetError: an array claims more than its stored data, than compression explains, or than the free memory.
        OSError, ValueError, zipfile.BadZipFile: it is not such a file, is damaged, or an array contains objects.
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
