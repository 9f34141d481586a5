"""Whatever libraries raise at damaged data, as one line that names the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from imitate.errors import DatasetError, UserError


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around the reading of a foreign file.

    A dozen libraries read here, and none says what it raises at damaged bytes: some of it derives from nothing but
    ``Exception``. What went wrong stays the cause of the error.

    Raises:
        DatasetError: it cannot be read.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise DatasetError(
            f"{path}: cannot be read ({type(error).__name__}: {reason}): it is cut short, damaged or not of this format"
        ) from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around the writing of a dataset.

    Raises:
        DatasetError: the disk is full, or the like; or the source has names or texts that cannot be written.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        raise DatasetError(
            f"{path}: the source has a name or text that is not UTF-8 ({error.reason}): it is damaged; copy it again"
        ) from error
    except OSError as error:
        reason = error.strerror or (str(error).splitlines() or [type(error).__name__])[0]
        raise DatasetError(
            f"{path}: cannot be written ({reason}): make room, or choose another folder"
        ) from error
