"""Files of `torch.save`: their sizes, checksums and calls, checked before torch reads them.

`torch.save` writes a zip archive whose entries are stored as they are, each with a CRC-32. torch reads it without
verifying the checksums, so a flipped bit changes a weight unnoticed; and it unpacks compressed entries to any size.
The calls in its pickle are checked by :mod:`imitate.system.pickle_calls`. Before torch 1.6, `torch.save` wrote
consecutive pickles instead of an archive; some published weights still have this form.
"""

from __future__ import annotations

import pickletools
import sys
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from imitate.errors import CheckpointError
from imitate.system.pickle_calls import wrong_call

_MAX_PICKLE, _PICKLES = 2**28, 5
"""Bytes of a checkpoint's structure; its numbers lie beside it. Pickles in a file of before torch 1.6."""


def is_archive(source: Path | BinaryIO) -> bool:
    """Return true for a file as `torch.save` writes it: a zip archive with an intact end."""
    try:
        return zipfile.is_zipfile(source)
    except Exception:  # some damage at the end raises an error in zipfile
        return False


def check_archive(source: Path | BinaryIO, name: str | Path, size: int) -> None:
    """Verify sizes and checksums; reads the file once, 100 MB in about a tenth of a second.

    Args:
        source: the file.
        name: name of the file, for messages.
        size: size of the file in bytes.

    Raises:
        CheckpointError: an entry is damaged, occurs twice, or is compressed; the numbers are in another byte order; the
            pickle calls functions that no checkpoint calls.
    """
    try:
        words = _archive_fault(source, size)
    except Exception as error:  # zipfile and zlib raise a dozen kinds on damaged archives
        raise damage(name, first_line(error)) from error
    if words is not None:
        raise damage(name, words)


def file_fault(path: Path) -> str | None:
    """Describe the fault of a file for torch (an archive or pickles), or return None."""
    try:
        if is_archive(path):
            return _archive_fault(path, path.stat().st_size)
        return _pickles_fault(path)
    except Exception as error:  # zipfile, zlib and pickletools raise a dozen kinds on damaged files
        return first_line(error)


def _archive_fault(source: Path | BinaryIO, size: int) -> str | None:
    with zipfile.ZipFile(source) as archive:
        entries = archive.infolist()
        unpacked = sum(entry.file_size for entry in entries)
        names = [entry.orig_filename for entry in entries]  # as torch interprets them
        if len(names) != len({name.casefold() for name in names}):
            return "two of its entries have one name"
        if min((entry.header_offset for entry in entries), default=0) > 0:
            return "something lies before the archive in it"
        if unpacked > size:
            return f"it would unpack to {unpacked:,} bytes; checkpoints are not compressed"
        if (damaged := archive.testzip()) is not None:
            return f"the checksum of {damaged} is wrong"
        return _wrong_order(archive, entries) or _wrong_pickle(archive, entries)


def _pickles_fault(path: Path) -> str | None:
    with path.open("rb") as file:
        for _ in range(_PICKLES):
            start = file.tell()
            with suppress(ValueError):  # malformed: torch makes the calls before that place
                for _ in pickletools.genops(file):
                    if file.tell() - start > _MAX_PICKLE:
                        return f"its structure has more than {_MAX_PICKLE:,} bytes"
            size = file.tell() - start
            file.seek(start)
            if (words := wrong_call(file.read(size))) is not None:
                return words
    return None


def _named(entries: Sequence[zipfile.ZipInfo], wanted: str) -> list[zipfile.ZipInfo]:
    """Return the entries that torch, which ignores case, may confuse with this one."""
    return [e for e in entries if e.orig_filename.casefold().rpartition("/")[2] == wanted]


def _wrong_order(archive: zipfile.ZipFile, entries: Sequence[zipfile.ZipInfo]) -> str | None:
    """Describe numbers in a byte order that differs from this machine's, which torch would misread."""
    for entry in _named(entries, "byteorder"):
        order = archive.read(entry)[:10].decode("ascii", "replace")
        if order != sys.byteorder:
            return f"its numbers are in the byte order '{order}', and this machine's is {sys.byteorder}"
    return None


def _wrong_pickle(archive: zipfile.ZipFile, entries: Sequence[zipfile.ZipInfo]) -> str | None:
    """Describe a pickle that would take much memory or create tensors of another kind."""
    for entry in _named(entries, "data.pkl"):
        if entry.file_size > _MAX_PICKLE:
            return f"{entry.filename} has more than {_MAX_PICKLE:,} bytes"
        if (words := wrong_call(archive.read(entry))) is not None:
            return words
    return None


def damage(name: str | Path, words: str) -> CheckpointError:
    """Return the error for a damaged file."""
    return CheckpointError(f"{name}: damaged ({words}); take another checkpoint of the run")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message with its kind, or its kind alone where it has none."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
