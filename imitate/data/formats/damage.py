"""Conversion of libraries' errors for damaged data to one line that names the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from imitate.errors import DatasetError, UserError
from imitate.system.free_memory import check_claim


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert errors of reading a foreign file to DatasetError; a context manager.

    A dozen libraries are used for reading, and none documents its errors for damaged bytes; some derive only from
    ``Exception``. The original error is kept as the cause.

    Raises:
        DatasetError: the file cannot be read; the message names it.
    """
    try:
        yield
    except DatasetError as error:
        if str(path) in str(error):
            raise
        raise DatasetError(f"{path}: {error}") from error
    except UserError:
        raise
    except Exception as error:
        raise DatasetError(
            f"{path}: cannot be read ({type(error).__name__}: {_first_line(error)}): "
            "it is cut short, damaged or not of this format"
        ) from error


def stored_bytes(path: Path) -> int:
    """Return the total size of all files in bytes.

    Refuse special files, such as pipes, and sizes that exceed memory.
    """
    sizes = [0]
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.exists() and not file.is_file() and not file.is_dir():
            raise DatasetError(f"{file}: is not a regular file: copy the dataset again")
        sizes.append(file.stat().st_size if file.is_file() else 0)
    check_claim(f"{path}: a file of it", max(sizes), max(sizes))
    return sum(sizes)


@contextmanager
def writing(final: Path, unfinished: Path) -> Iterator[None]:
    """Convert errors of writing a dataset to DatasetError; a context manager.

    Args:
        final: the final path, which errors name.
        unfinished: the path during writing.

    Raises:
        DatasetError: for example the disk is full; or the source has names or texts that cannot be written.
    """
    try:
        yield
    except DatasetError as error:
        if str(unfinished) not in str(error):
            raise
        raise DatasetError(str(error).replace(str(unfinished), str(final))) from error
    except UserError:
        raise
    except UnicodeEncodeError as error:
        raise DatasetError(
            f"{final}: the source has a name or text that is not UTF-8 ({error.reason}): it is damaged; copy it again"
        ) from error
    except (OSError, RuntimeError) as error:  # HDF5 reports a full disk by either of these errors
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else _first_line(error)
        raise DatasetError(
            f"{final}: cannot be written ({reason}): make room, or choose another folder"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
