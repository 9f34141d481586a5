"""Whatever libraries raise at damaged data, as one line that names the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import error as struct_error
from zipfile import BadZipFile
from zlib import error as zlib_error

from imitate.errors import DatasetError

DAMAGE = (
    OSError,
    EOFError,
    RuntimeError,
    LookupError,
    ValueError,
    TypeError,
    ArithmeticError,
    MemoryError,
    BadZipFile,
    struct_error,
    zlib_error,
)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around the reading of a foreign file.

    Raises:
        DatasetError: it cannot be read.
    """
    try:
        yield
    except DAMAGE as error:
        reason = (str(error).splitlines() or [""])[0]
        raise DatasetError(
            f"{path}: cannot be read ({type(error).__name__}: {reason}): it is cut short, damaged or not of this format"
        ) from error
