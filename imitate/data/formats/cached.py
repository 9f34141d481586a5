"""Datasets of other formats, converted once to a demonstration file in the cache and read from there.

The name of a converted file is a fingerprint of its source: names, sizes and modification times of all files. So a
changed dataset is converted again, and a resumed run finds the converted file or makes an equal one. LeRobot's images
are not re-encoded; images of other formats with lossy compression become JPEGs. If the cache exceeds
``IMITATE_CACHE_GB`` gigabytes (50 by default), the least recently used files are removed.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from imitate.data.file.cache import Hold, cache_folder, limit_bytes, remove_oldest, was_read
from imitate.data.formats import registry
from imitate.data.formats.base import Format, Options
from imitate.data.formats.convert import convert
from imitate.errors import DatasetError
from imitate.system.plain_files import locked
from imitate.system.recognition import diagnosis
from imitate.system.text import ProgressBar

_VERSION = 5
"""Version of the conversion, to be increased whenever its results change."""
_logger = logging.getLogger(__name__)


def as_demonstration_file(path: Path, found: Format | None = None) -> Path:
    """Return the converted HDF5 file of a dataset in another format; convert the dataset if the file is missing.

    Args:
        path: path of the dataset, which is never changed.
        found: format of the dataset, or None to detect it.

    Raises:
        DatasetError: the format is unknown, or the conversion needs further options; the message names the format and
            the remedy.
    """
    found = found or _format_of(path)
    if found.needs_replay:
        raise DatasetError(
            f"{path}: holds simulator states without observations ({found.name}): make a file with observations by "
            f"`imitate dataset convert {path} NEW.hdf5`"
        )
    name = f"{path.resolve().name}-{_fingerprint(path, found)}"
    file = cache_folder("datasets") / f"{name}.hdf5"
    if not file.is_file():
        with _being_made(file):
            if not file.is_file():  # another process has converted the dataset
                _convert(path, found, file)
    was_read(file)
    return file


def held(file: Path) -> Hold | None:
    """Protect a converted file from removal while the result exists; return None for files outside of the cache."""
    return Hold(file) if file.parent == cache_folder("datasets") else None


def convertible_format(path: Path) -> Format | None:
    """Return the format in which :func:`as_demonstration_file` would read a path, or None if it is not converted."""
    try:
        return registry.detect(path)
    except DatasetError:
        return None


def _format_of(path: Path) -> Format:
    try:
        return registry.detect(path)
    except DatasetError as error:
        known = diagnosis(path)
        if known is not None:
            raise DatasetError(known) from error
        kind = "a folder" if path.is_dir() else "not an HDF5 file"
        raise DatasetError(
            f"{path}: is {kind} in none of the known formats ({', '.join(registry.names())}): "
            "name a demonstration file (.hdf5) or a dataset of one of these formats"
        ) from error


def _convert(path: Path, found: Format, file: Path) -> None:
    with ProgressBar(desc=f"converting {path.name}", unit="demo", delay=2, disable=None) as bar:

        def show(_: str, count: int | None) -> None:
            bar.total = count
            bar.update()

        try:
            report = convert(
                path,
                file,
                from_format=found.name,
                options=Options(
                    images="as-source",
                    skip_incomplete=False if "skip_incomplete" in found.options else None,
                ),
                on_demo=show,
            )
        except DatasetError as error:
            if not str(error).startswith(str(file)):
                raise
            raise DatasetError(f"{error}; set IMITATE_CACHE to a folder with room") from error
    _remove_unused(file)
    _logger.warning(
        "%s: a dataset of the format '%s', converted once into %s (%d demos, %d steps, %.1f MB)",
        path,
        found.name,
        file,
        report.demos,
        report.steps,
        file.stat().st_size / 1e6,
    )
    for name, why in report.doubts.items():
        _logger.warning("%s: %s: %s", path, name, why)


def _fingerprint(path: Path, found: Format) -> str:
    listed = sorted(_files(path)) if path.is_dir() else [("", *_state(path))]
    described = json.dumps([_VERSION, found.name, listed])
    return hashlib.sha256(described.encode(errors="surrogateescape")).hexdigest()[:16]


def _files(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Return name, size and modification time of each file, without unfinished downloads."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in (".cache", ".git")]
        for name in names:
            file = Path(parent, name)
            with suppress(OSError):
                yield file.relative_to(folder).as_posix(), *_state(file)


def _state(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


@contextmanager
def _being_made(file: Path) -> Iterator[None]:
    """Lock a converted file, so that only this process writes it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = locked(_lock_of(file))
    except OSError as error:
        raise DatasetError(
            f"{file}: cannot be written ({error.strerror}): set IMITATE_CACHE to a folder with room"
        ) from error
    with lock:
        yield


def _lock_of(file: Path) -> Path:
    return file.with_suffix(".lock")


def _remove_unused(made: Path) -> None:
    """Remove the least recently used converted files that are not in use, until the cache is within its limit."""
    others = [file for file in made.parent.glob("*.hdf5") if file != made]
    remove_oldest(others, limit_bytes() - made.stat().st_size)
    for file in others:
        if not file.exists():
            with suppress(OSError), locked(_lock_of(file), wait=False):
                _lock_of(file).unlink()
