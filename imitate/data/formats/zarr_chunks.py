"""Check of the files of a zarr dataset before zarr unpacks them.

zarr unpacks a chunk whatever its size turns out to be, so a small file could fill the memory. Here each chunk is
measured first: by its own header for blosc, lz4 and zstd, and by unpacking it in small parts for the others.
"""

from __future__ import annotations

import bz2
import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from imitate.data.formats.base import files_below
from imitate.errors import DatasetError
from imitate.system.memory import ALWAYS_BYTES, gigabytes
from imitate.system.plain_files import MAX_TEXT

_PART = 2**20
_WIDER = 8
"""Largest factor by which a filter may change the size of a value."""
_METADATA = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
_SAME_SIZE = frozenset(
    {
        *("bytes", "transpose", "crc32c"),  # of format 3, which has a list of codecs
        *("delta", "shuffle", "bitround", "quantize", "crc32", "adler32", "fletcher32"),
        *("imagecodecs_jpeg2k", "imagecodecs_jpegxl"),
    }
)
"""Codecs that do not unpack, or unpack one picture."""


class StoredFiles:
    """The files of a dataset, which is a folder or a zip archive.

    Args:
        path: path of the dataset.

    Raises:
        DatasetError: a description is larger than any intact one.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._packed = path, {}
        if path.is_dir():
            return  # descriptions are not compressed
        with zipfile.ZipFile(path) as archive:
            self._packed = {entry.filename: entry.file_size for entry in archive.infolist()}
        for name, size in self._packed.items():
            if name.rpartition("/")[2] in _METADATA:
                self._refuse_above(name, size, MAX_TEXT)

    def _chunks(self, array: str) -> Iterator[tuple[str, int]]:
        """Yield name and size of each file below an array."""
        named: Iterable[tuple[str, int]] = self._packed.items()
        if self._path.is_dir():
            files = filter(Path.is_file, files_below(self._path / array))
            named = ((f.relative_to(self._path).as_posix(), f.stat().st_size) for f in files)
        for name, size in named:
            last = name.rpartition("/")[2]
            if name.startswith(f"{array}/") and last and last not in _METADATA:
                yield name, size

    @contextmanager
    def _opened(self, name: str) -> Iterator[IO[bytes]]:
        if self._path.is_dir():
            with (self._path / name).open("rb") as file:
                yield file
        else:
            with zipfile.ZipFile(self._path) as archive, archive.open(name) as file:
                yield file

    def check_chunks(self, arrays: Mapping[str, Any]) -> None:
        """Check the chunks of zarr arrays, by their paths in the dataset.

        Raises:
            DatasetError: a chunk is larger than its array says, or packed by a codec that cannot be measured.
        """
        for path, array in arrays.items():
            limit = max(ALWAYS_BYTES, _WIDER * math.prod(array.chunks) * array.dtype.itemsize)
            measure = self._measure(path, array)
            for name, size in self._chunks(path):
                self._refuse_above(name, size, limit)
                if measure is not None:
                    with self._opened(name) as file:
                        self._refuse_above(name, measure(file, limit), limit)

    def _measure(self, path: str, array: Any) -> Callable[[IO[bytes], int], int] | None:
        """Return the measure of an array's chunks, or None if they are not packed."""
        codecs = list(_codecs(array.metadata.to_dict()))
        packing = [name for name in codecs if name in _MEASURES]
        odd = [name for name in codecs if name not in _SAME_SIZE and name not in _MEASURES]
        if odd or len(packing) > 1:
            raise DatasetError(
                f"{self._path}: '{path}' is packed by {' and '.join(odd or packing)[:200]}, which is not read: store "
                "it with one of blosc, zstd, lz4, gzip, zlib, bz2, lzma, or without"
            )
        return _MEASURES[packing[0]] if packing else None

    def _refuse_above(self, name: str, size: int, limit: int) -> None:
        if size > limit:
            raise DatasetError(
                f"{self._path}: {name} takes {gigabytes(size)} or more, at most {gigabytes(limit)} are expected: the "
                "dataset is damaged; copy it again"
            )


def _codecs(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of an array's codecs, in zarr's format 2 or 3."""
    found = metadata.get("codecs")
    if found is None:
        found = [*(metadata.get("filters") or ()), metadata.get("compressor")]
    for codec in filter(None, found):
        yield str(codec.get("id") or codec.get("name"))


def _streamed(make: Callable[[], Any]) -> Callable[[IO[bytes], int], int]:
    """Return a function that counts the bytes of a packed file, up to the first part above a limit."""

    def size_of(file: IO[bytes], limit: int) -> int:
        size, unpacker, data = 0, make(), b""
        while size <= limit:
            data = data or file.read(_PART)
            if unpacker.eof:  # several streams may follow each other
                unpacker = make()
            if not data and getattr(unpacker, "needs_input", True):
                break
            size += len(unpacker.decompress(data, _PART))
            data = (
                unpacker.unused_data if unpacker.eof else getattr(unpacker, "unconsumed_tail", b"")
            )
        return size

    return size_of


def _headed(form: str, at: int) -> Callable[[IO[bytes], int], int]:
    """Return a function that reads the size from the header of a packed file."""

    def size_of(file: IO[bytes], limit: int) -> int:
        size: int = struct.unpack_from(form, file.read(at + struct.calcsize(form)), at)[0]
        return size

    return size_of


def _zstd(file: IO[bytes], limit: int) -> int:
    """Return the size in the header of a frame of zstd (RFC 8878), without which a chunk counts as too large."""
    head = file.read(14)
    flags = head[4]
    single, form = bool(flags & 0x20), ("<B", "<H", "<I", "<Q")[flags >> 6]
    if form == "<B" and not single:
        return limit + 1
    at = 5 + (not single) + (0, 1, 2, 4)[flags & 3]
    size: int = struct.unpack_from(form, head + file.read(8), at)[0]
    return size + 256 if form == "<H" else size


_MEASURES: dict[str, Callable[[IO[bytes], int], int]] = {
    "zlib": _streamed(zlib.decompressobj),
    "gzip": _streamed(lambda: zlib.decompressobj(31)),
    "bz2": _streamed(bz2.BZ2Decompressor),
    "lzma": _streamed(lzma.LZMADecompressor),
    "zstd": _zstd,
    "lz4": _headed("<I", 0),
    "blosc": _headed("<I", 4),
}
"""Measures of a packed chunk, with a limit above which the size need not be exact."""
