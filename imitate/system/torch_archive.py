"""Checks of files of `torch.save` before torch reads them: sizes, checksums, and the calls in their pickles.

`torch.save` writes a zip archive whose entries are not compressed, each with a CRC-32. torch does not verify the
checksums, so a flipped bit would change a weight unnoticed, and it unpacks compressed entries to any size. Before torch
1.6, `torch.save` wrote consecutive pickles instead of an archive; some published weights still have this form.

Some of the functions that torch considers safe can allocate far more memory than the file has: they make a byte array
of any size, a tensor without storage, or copies, and a pickle of kilobytes can request thousands of copies of a long
list or text. So the calls in the pickle of a checkpoint or of weights are checked before torch executes them.
"""

import codecs
import pickle
import pickletools
import struct
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from imitate.errors import CheckpointError

CALLED = frozenset(
    {
        *("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter", "torch Size"),
        "torch device",
        *("collections OrderedDict", "_codecs encode", "numpy dtype"),
        *("numpy.core.multiarray scalar", "numpy.core.multiarray _reconstruct"),
        *("numpy._core.multiarray scalar", "numpy._core.multiarray _reconstruct"),
    }
)
"""Functions that the pickle of a checkpoint may call."""
_NUMPY_KINDS = ("bool_", "int32", "int64", "uint8", "float32", "float64", "str_")
"""Types of numpy's numbers and arrays that a checkpoint may contain."""
_ALLOWED = ("torch", "builtins", "collections", "numpy", "_codecs")
"""Packages from which torch allows functions; torch itself refuses all other packages."""
_TIMES = 16
"""Largest ratio of the number of values in the arguments of calls to the bytes of the pickle."""
_ROOM = 2**16
"""Number of values in the arguments of calls that any pickle may have in addition to this ratio."""
_COUNTS = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2}
_PUSHING = frozenset(
    {
        *("NONE", "NEWFALSE", "NEWTRUE", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "EMPTY_TUPLE"),
        *("BINFLOAT", "BININT", "BININT1", "BININT2", "LONG1", "GLOBAL", "BINUNICODE"),
        *("SHORT_BINSTRING", "BINGET", "LONG_BINGET"),
    }
)


def wrong_call(pickled: bytes) -> str | None:
    """Describe a call that no checkpoint makes, or one with far more values than the pickle contains; else None."""
    left = _TIMES * len(pickled) + _ROOM
    with suppress(ValueError, LookupError, TypeError):  # malformed: torch stops here too
        for function, given in _calls(pickled):
            module, _, name = function.partition(" ")
            if (
                module in ("torch._utils", "torch._tensor", "torch.serialization")
                and function not in CALLED
            ):
                return f"it holds a tensor of another kind ({name})"
            if function not in CALLED:
                known = module.partition(".")[0] in _ALLOWED
                return f"it calls {function}, which no checkpoint does" if known else None
            if not isinstance(given, tuple):
                return f"it calls {function} with an argument that is not a tuple"
            if name == "_reconstruct" and given[1:2] != ((0,),):
                return "it makes an array that is not empty"
            left -= 1 + sum(map(_size, given))
            if left < 0:
                return "it makes many copies of a part of it"
    return None


def _calls(pickled: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the function and the arguments of each call.

    In the arguments, texts, names, integers and tuples are themselves; every other object is represented by a list with
    one number, its size. An opcode that torch does not support ends the pickle.
    """
    stack: list[Any] = []
    marks: list[list[Any]] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, _ in pickletools.genops(pickled):
        name = opcode.name
        if name in _PUSHING:
            stack.append(memo[argument] if name.endswith("GET") else _value(name, argument))
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name == "MARK":
            marks.append(stack)
            stack = []
        elif name in _COUNTS or name in ("TUPLE", "APPENDS", "SETITEMS"):
            count = _COUNTS.get(name, len(stack))
            items = stack[len(stack) - count :]
            del stack[len(stack) - count :]
            stack = stack if name in _COUNTS else marks.pop()
            _put(items, stack, name.startswith("TUPLE"))
        elif name == "BINPERSID":
            stack[-1] = [1]
        elif name == "BUILD":
            state = stack.pop()
            yield "numpy dtype", state if isinstance(state, tuple) else (state,)
        elif name in ("REDUCE", "NEWOBJ"):
            given, function = stack.pop(), stack.pop()
            yield str(function), given
            stack.append(
                [2 * sum(map(_size, given))]
            )  # hexadecimal digits take twice as many bytes
        elif name not in ("PROTO", "STOP"):
            return


def _value(name: str, argument: Any) -> Any:
    """Return the value that an opcode puts on the stack."""
    if isinstance(argument, str | int):
        return argument
    return () if name == "EMPTY_TUPLE" else [1]


def _put(items: list[Any], stack: list[Any], as_tuple: bool) -> None:
    """Put items on the stack as a tuple, or append them to the container on top of the stack."""
    if as_tuple:
        stack.append(tuple(items))
    else:
        stack[-1][0] += len(items)


def _size(value: Any) -> int:
    """Return the number of values in an argument."""
    if isinstance(value, str | tuple):
        return len(value)
    return value[0] if isinstance(value, list) else 1


_FIRST = b"PK\x03\x04"
"""First bytes of an archive with at least one entry."""
_END, _END64, _LOCATOR = (struct.Struct(form) for form in ("<4s4HLLH", "<4sQHHLLQQQQ", "<4sLQL"))
"""Records at the end of a zip archive: its end, and for large archives the ZIP64 end and the ZIP64 locator."""
_MAX_PICKLE = 2**28
"""Largest size in bytes of a checkpoint's pickle, which has only the structure; numbers are stored in other entries."""
_PICKLES = 5
"""Number of pickles at the beginning of a checkpoint in torch's old format."""


def is_archive(source: Path | BinaryIO) -> bool:
    """Return true for a file as `torch.save` writes it: a zip archive with an intact end."""
    try:
        return zipfile.is_zipfile(source)
    except Exception:  # zipfile may raise errors for a damaged end
        return False


def check_archive(source: Path | BinaryIO, name: str | Path, size: int) -> None:
    """Verify sizes and checksums; reads the file once, 100 MB in about a tenth of a second.

    Args:
        source: the file.
        name: name of the file, for messages.
        size: size of the file in bytes.

    Raises:
        CheckpointError: an entry is damaged, occurs twice or is compressed; the numbers have another byte order than
            this machine; or the pickle calls functions that no checkpoint calls.
    """
    try:
        words = _archive_fault(source, size)
    except (
        Exception
    ) as error:  # zipfile and zlib raise many types of exceptions for damaged archives
        raise damage(name, first_line(error)) from error
    if words is not None:
        raise damage(name, words)


def file_fault(path: Path) -> str | None:
    """Describe the fault of a file that `torch.save` wrote (an archive or pickles); None if there is no fault."""
    try:
        with path.open("rb") as file:
            begins = file.read(len(_FIRST))
        if begins == _FIRST or is_archive(path):  # as torch does, by the first bytes
            return _archive_fault(path, path.stat().st_size)
        return _pickles_fault(path)
    except Exception as error:  # zipfile, zlib and pickletools raise many exceptions
        return first_line(error)


def _archive_fault(source: Path | BinaryIO, size: int) -> str | None:
    with zipfile.ZipFile(source) as archive:
        entries = archive.infolist()
        unpacked = sum(entry.file_size for entry in entries)
        names = [entry.orig_filename for entry in entries]  # names as torch interprets them
        if len(names) != len({name.casefold() for name in names}):
            return "two of its entries have one name"
        if not entries:
            return "it is an archive of nothing"
        if min(entry.header_offset for entry in entries) > 0:
            return "it has other bytes before the archive"
        if archive.fp is None or not _is_plain_end(archive.fp, size, archive.start_dir):
            return "its end does not fit its beginning"
        if unpacked > size:
            return f"it would unpack to {unpacked:,} bytes; checkpoints are not compressed"
        if (damaged := archive.testzip()) is not None:
            return f"the checksum of {damaged} is wrong"
        return _wrong_order(archive, entries) or _wrong_pickle(archive, entries)


def _is_plain_end(file: IO[bytes], size: int, listed_at: int) -> bool:
    """Return true if Python and torch find the same list of entries at the end of an archive.

    Python computes the position of this list from the end record, torch uses the position stored in the record, and
    they search for the record differently. If the positions differed, they would read different entries.

    Args:
        file: the archive.
        size: size of the archive in bytes.
        listed_at: position of the list of entries according to Python's zipfile.
    """
    short = _LOCATOR.size + _END.size
    file.seek(max(0, size - _END64.size - short))
    tail = file.read()
    end = _END.unpack(tail[-_END.size :])
    stops, begins = size - _END.size, end[6]
    if tail[-short:].startswith(b"PK\x06\x07"):
        stops -= _LOCATOR.size + _END64.size
        if (
            tail[: len(_FIRST)] != b"PK\x06\x06"
            or _LOCATOR.unpack(tail[-short : -_END.size])[2] != stops
        ):
            return False
        length, begins = _END64.unpack(tail[: _END64.size])[-2:]
    else:
        length = end[5]
    plain = end[0] == b"PK\x05\x06" and end[-1] == 0
    return bool(plain and begins == listed_at and begins + length == stops)


def _pickles_fault(path: Path) -> str | None:
    with path.open("rb") as file:
        for _ in range(_PICKLES):
            start = file.tell()
            with suppress(ValueError):  # malformed, but torch makes the calls before
                for _ in pickletools.genops(file):
                    if file.tell() - start > _MAX_PICKLE:
                        return f"its structure has more than {_MAX_PICKLE:,} bytes"
            size = file.tell() - start
            file.seek(start)
            if (words := wrong_call(file.read(size))) is not None:
                return words
    return None


def _named(entries: Sequence[zipfile.ZipInfo], wanted: str) -> list[zipfile.ZipInfo]:
    """Return the entries that torch may read for the name ``wanted``, because it ignores case."""
    return [e for e in entries if e.orig_filename.casefold().rpartition("/")[2] == wanted]


def _wrong_order(archive: zipfile.ZipFile, entries: Sequence[zipfile.ZipInfo]) -> str | None:
    """Describe a byte order that differs from this machine's, because torch would misread the numbers; else None."""
    for entry in _named(entries, "byteorder"):
        order = archive.read(entry)[:10].decode("ascii", "replace")
        if order != sys.byteorder:
            return f"its numbers are in the byte order '{order}', and this machine's is {sys.byteorder}"
    return None


def _wrong_pickle(archive: zipfile.ZipFile, entries: Sequence[zipfile.ZipInfo]) -> str | None:
    """Describe a pickle that would take much memory or create unusual tensors; else None."""
    for entry in _named(entries, "data.pkl"):
        if entry.file_size > _MAX_PICKLE:
            return f"{entry.filename} has more than {_MAX_PICKLE:,} bytes"
        if (words := wrong_call(archive.read(entry))) is not None:
            return words
    return None


def read_tensors(
    source: str | Path | BinaryIO,
    map_location: Any = "cpu",
    *,
    name: str | Path | None = None,
) -> Any:
    """Read a file of tensors, numbers, strings, lists, dicts, and numpy's numbers and arrays.

    Args:
        source: the file.
        map_location: device of the tensors, as in `torch.load`.
        name: name of the file for messages, or None for ``source``.

    Raises:
        CheckpointError: the file contains other objects.
    """
    import torch  # imported here, because files are also checked on computers without torch

    called = str(source) if name is None else name
    try:
        return torch.load(source, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        allowed = getattr(torch.serialization, "safe_globals", None)  # since torch 2.5
        if allowed is None:
            raise _refusal(called, error) from error
    if not isinstance(source, (str, Path)):
        source.seek(0)
    try:
        with allowed(_harmless()):
            return torch.load(source, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise _refusal(called, error) from error


def _harmless() -> list[Any]:
    """Return the types of numpy's numbers and arrays, under the names of numpy 1 and 2."""
    scalar, rebuild = (value.__reduce__()[0] for value in (np.float64(0.0), np.zeros(0)))
    kinds = [type(np.dtype(getattr(np, name))) for name in _NUMPY_KINDS]
    named = [
        (function, f"numpy.{package}.multiarray.{name}")
        for package in ("core", "_core")
        for function, name in ((scalar, "scalar"), (rebuild, "_reconstruct"))
    ]
    return [np.ndarray, np.dtype, *kinds, *named, (codecs.encode, "_codecs.encode")]


def _refusal(path: str | Path, error: Exception) -> CheckpointError:
    """Return the error for a file with other objects; it names the class that torch refused."""
    _, found, rest = str(error).partition("GLOBAL ")
    what = rest.split()[0] if found else "an object of another class"
    return CheckpointError(
        f"{path}: refused, because it contains Python objects that could run code when loaded ({what}); "
        "a checkpoint holds only tensors, numbers, arrays, strings, lists and dicts"
    )


def damage(name: str | Path, words: str) -> CheckpointError:
    """Return the error for a damaged file."""
    return CheckpointError(f"{name}: damaged ({words}); take another checkpoint of the run")


def first_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message, if it has one."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
