"""Archive of a checkpoint: its sizes and checksums, checked before anything in it is read.

`torch.save` writes a zip archive whose entries are stored as they are, each with a CRC-32. torch reads it without
verifying the checksums, so that a flipped bit becomes another weight; and it unpacks compressed entries to any size.
Its list of harmless functions makes a byte array of any size, and tensors without or beyond their storage; so the
pickle is scanned for what it names before it is loaded.
"""

from __future__ import annotations

import pickletools
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from imitate.errors import CheckpointError

_MAX_PICKLE = 2**28
"""Bytes of a checkpoint's structure; its numbers lie beside it."""
_REBUILT = frozenset({"_rebuild_tensor_v2", "_rebuild_parameter"})
"""Functions of torch that make the tensors of a checkpoint; its others make tensors without memory of their own."""


def is_archive(source: Path | BinaryIO) -> bool:
    """Return true for a file as `torch.save` writes it: a zip archive with an intact end."""
    try:
        return zipfile.is_zipfile(source)
    except Exception:  # some damage of the end raises in zipfile
        return False


def check_archive(source: Path | BinaryIO, name: str | Path, size: int) -> None:
    """Verify sizes and checksums; reads the file once, 100 MB in about a tenth of a second.

    Args:
        source: the file.
        name: of the file, for messages.
        size: of the file in bytes.

    Raises:
        CheckpointError: an entry is damaged, is there twice, or is compressed to less than it takes in memory; the
            numbers are in another byte order; the pickle makes tensors of a kind that no checkpoint has.
    """
    words: str | None
    try:
        with zipfile.ZipFile(source) as archive:
            entries = archive.infolist()
            unpacked = sum(entry.file_size for entry in entries)
            names = [entry.filename for entry in entries]
            if len(names) != len({name.casefold() for name in names}):
                words = "two of its entries have one name"
            elif unpacked > size:
                words = f"it would unpack to {unpacked:,} bytes; checkpoints are not compressed"
            elif (damaged := archive.testzip()) is not None:
                words = f"the checksum of {damaged} is wrong"
            else:
                words = _wrong_order(archive, names) or _wrong_pickle(archive, names)
    except Exception as error:  # zipfile and zlib raise a dozen kinds on damaged archives
        raise damage(name, first_line(error)) from error
    if words is not None:
        raise damage(name, words)


def _wrong_order(archive: zipfile.ZipFile, names: Sequence[str]) -> str | None:
    """Return words for numbers in another byte order than this machine's, which torch would take for its own."""
    for name in names:
        if name.rpartition("/")[2] == "byteorder":
            order = archive.read(name)[:10].decode("ascii", "replace")
            if order != sys.byteorder:
                return f"its numbers are in the byte order '{order}', and this machine's is {sys.byteorder}"
    return None


def _wrong_pickle(archive: zipfile.ZipFile, names: Sequence[str]) -> str | None:
    """Return words for a pickle that would take much memory, or make tensors of another kind."""
    for name in (name for name in names if name.rpartition("/")[2] == "data.pkl"):
        if archive.getinfo(name).file_size > _MAX_PICKLE:
            return f"{name} has more than {_MAX_PICKLE:,} bytes"
        for module, attribute in _globals(archive.read(name)):
            if module in ("torch._utils", "torch._tensor") and attribute not in _REBUILT:
                return f"it holds a tensor of another kind ({attribute})"
            if attribute == "bytearray":
                return "it holds a bytearray, of any size"
    return None


def _globals(pickled: bytes) -> Iterator[tuple[str, str]]:
    """Modules and names in a pickle, up to where it is none; torch refuses other ways to name them."""
    with suppress(Exception):  # malformed ones raise many kinds
        for opcode, argument, _ in pickletools.genops(pickled):
            if opcode.name == "GLOBAL":
                module, _, name = str(argument).partition(" ")
                yield module, name


def damage(name: str | Path, words: str) -> CheckpointError:
    """Return the error for a damaged file."""
    return CheckpointError(f"{name}: damaged ({words}); take another checkpoint of the run")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message with its kind, or its kind alone where it has none."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
