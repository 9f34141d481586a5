"""Reading of HDF5 files of other toolkits, which may be damaged.

One check finds damage that would make the HDF5 library loop forever. Strings of variable length are stored in heaps:
b"GCOL", version, size, then objects: number (2 bytes), references (2), 4 unused, size (8), data up to the next multiple
of 8. Object 0 is the free space. If the size of an object is 0, the library reads the same object again, forever.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from imitate.data.file.confined import DEEPEST, MOST_GROUPS, ConfinedFile
from imitate.data.file.encoded_frames import DamagedFrameError
from imitate.data.file.image_codec import FrameReader, storage_of
from imitate.data.file.journal import refuse_interrupted
from imitate.errors import DatasetError
from imitate.system.memory import check_ratio, check_room

SEARCHED_BYTES = 2**30
"""Size of the part of a file that is searched for damaged heaps, which takes about a second."""
_SIGNATURE = b"GCOL\x01\x00\x00\x00"
_HEADER, _OBJECT = 16, struct.Struct("<HHIQ")


def check_heaps(path: Path) -> None:
    """Check all heaps of a file; in a large file, only those near its start.

    Raises:
        DatasetError: reading a heap would never end.
    """
    if not path.stat().st_size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        searched = min(len(data), SEARCHED_BYTES)
        at = data.find(_SIGNATURE, 0, searched)
        while at >= 0:
            if _never_ends(data, at):
                raise DatasetError(
                    f"{path}: the texts that begin at byte {at} are damaged: copy the file again"
                )
            at = data.find(_SIGNATURE, at + len(_SIGNATURE), searched)


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


ENDINGS = (".hdf5", ".h5", ".hdf")


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading.

    Raises:
        DatasetError: the file cannot be opened.
    """
    if not path.is_file():
        raise DatasetError(f"{path}: is not a file: name an HDF5 file")
    refuse_interrupted(path)
    try:
        file = ConfinedFile(path, "r")
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DatasetError(
            f"{path}: is not an HDF5 file, or is cut short or damaged ({reason}): copy it again"
        ) from error
    with file:
        check_heaps(path)
        yield file


def looks_like(path: Path) -> bool:
    """Return true if a file begins like an HDF5 file."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(8) == b"\x89HDF\r\n\x1a\n"


@contextmanager
def peeked(path: Path) -> Iterator[h5py.File | dict[str, Any]]:
    """Open a file; yield an empty dict if it is not a readable HDF5 file."""
    file: h5py.File | dict[str, Any] = {}
    if looks_like(path):
        try:
            file = ConfinedFile(path, "r")
        except (OSError, RuntimeError, ValueError):
            file = {}
    try:
        yield file
    finally:
        if isinstance(file, h5py.File):
            file.close()


def rows(dataset: h5py.Dataset, start: int = 0, stop: int | None = None) -> NDArray[Any]:
    """Read rows of an array; refuse sizes that only a damaged file can have, and more rows than fit into memory."""
    where = f"{dataset.file.filename}: '{dataset.name}'"
    claimed = dataset.size * dataset.dtype.itemsize if dataset.size else 0
    stored = Path(dataset.file.filename).stat().st_size
    check_ratio(where, claimed, stored)
    if dataset.ndim and claimed:
        count = len(range(*slice(start, stop).indices(len(dataset))))
        check_room(where, claimed // len(dataset) * count)
    values: NDArray[Any] = np.asarray(dataset[()] if dataset.ndim == 0 else dataset[start:stop])
    return values


def is_encoded(dataset: h5py.Dataset) -> bool:
    """Return true if an array has compressed frames in the form of :mod:`imitate.data.file.encoded_frames`."""
    return storage_of(dataset).frame is not None


def frame_rows(dataset: h5py.Dataset) -> NDArray[np.uint8]:
    """Return the decoded frames, (T, H, W, 3).

    Raises:
        DatasetError: a frame is damaged.
    """
    try:
        return FrameReader(dataset).read()
    except DamagedFrameError as error:
        raise DatasetError(
            f"{dataset.file.filename}: '{dataset.name}' at step {error.frame} cannot be decoded ({error}): "
            "the file is damaged; copy it again"
        ) from error


def leaves(group: h5py.Group) -> dict[str, h5py.Dataset]:
    """Return all arrays below a group by path, in order.

    Raises:
        DatasetError: the nesting of groups is endless.
    """
    found: dict[str, h5py.Dataset] = {}
    waiting, seen = [(group, "")], 0
    while waiting:
        inside, path = waiting.pop()
        seen += 1
        if seen > MOST_GROUPS or path.count("/") > DEEPEST:
            raise DatasetError(
                f"{group.file.filename}: groups of '{group.name}' are nested without end"
            )
        for name in inside:
            item = inside[name]
            if isinstance(item, h5py.Dataset):
                found[f"{path}{name}"] = item
            elif isinstance(item, h5py.Group):
                waiting.append((item, f"{path}{name}/"))
    return dict(sorted(found.items(), key=lambda entry: entry[0].split("/")))


def attributes(holder: Any) -> dict[str, Any]:
    """Return the attributes of a file, group or array as text, numbers or arrays."""
    return {name: plain(value) for name, value in holder.attrs.items()}


def plain(value: Any) -> Any:
    """Convert bytes to text and numpy scalars to Python's; bytes that are not UTF-8 are replaced."""
    if isinstance(value, str):
        value = value.encode(errors="surrogateescape")
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.item() if isinstance(value, np.generic) else value


def wanted(group: h5py.Group, name: str, where: str) -> h5py.Dataset:
    """Return a required array.

    Raises:
        DatasetError: the array does not exist.
    """
    item = group.get(name)
    if isinstance(item, h5py.Dataset):
        return item
    found = ", ".join(sorted(group)) or "nothing"
    raise DatasetError(
        f"{where}: has no array '{name}' (found: {found}), which the format requires"
    )


def texts(attrs: Mapping[str, Any], *keys: str) -> str | None:
    """Return the value of the first attribute among ``keys`` that is a string."""
    return next((attrs[key] for key in keys if isinstance(attrs.get(key), str)), None)
