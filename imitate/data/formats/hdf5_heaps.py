"""Check for damage that would make the HDF5 library loop forever.

Strings of variable length are stored in heaps: b"GCOL", version, size, then objects: number (2 bytes), references (2),
4 unused, size (8), data up to the next multiple of 8. Object 0 is the free space. After an object without any size,
such as free space of size 0, the library continues with the same object, forever.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from imitate.errors import DatasetError

_SEARCHED_BYTES = 2**30
_SIGNATURE = b"GCOL\x01\x00\x00\x00"
_HEADER, _OBJECT = 16, struct.Struct("<HHIQ")


def check_heaps(path: Path) -> None:
    """Check all heaps of a file; in a large file, only those near its start.

    Raises:
        DatasetError: reading a heap would never end.
    """
    if path.stat().st_size < _HEADER:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        searched = min(len(data), _SEARCHED_BYTES)
        at = data.find(_SIGNATURE, 0, searched)
        while at >= 0:
            if _never_ends(data, at):
                raise DatasetError(
                    f"{path}: the texts that begin at byte {at} are damaged: copy the file again"
                )
            at = data.find(_SIGNATURE, at + 1, searched)


def _never_ends(data: mmap.mmap, at: int) -> bool:
    end = min(len(data), at + int.from_bytes(data[at + 8 : at + _HEADER], "little"))
    place = at + _HEADER
    while place + _OBJECT.size <= end:
        number, _, _, size = _OBJECT.unpack_from(data, place)
        room = size if number == 0 else (_OBJECT.size + (size + 7) // 8 * 8) % 2**64
        if room == 0:
            return True
        place += room
    return False
