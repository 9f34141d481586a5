"""Compressed images, decoded once and stored in a file that all processes read.

A cache file contains one array of a demonstration file, with all wanted demos one after the other, in the same layout
as in RAM. Its name depends on the file's content and modification time, the array and the demos. The folder is
``frames`` in the cache
(:mod:`imitate.data.file.cache`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from imitate.data.dataset_file import DatasetFile
from imitate.data.file.cache import cache_folder, limit_bytes, remove_oldest, was_read
from imitate.data.file.fields import Field, read_pieces
from imitate.system.locks import locked
from imitate.system.memory import gigabytes
from imitate.system.plain_files import give_name
from imitate.system.text import ProgressBar

_VERSION = 1
_SPARE_BYTES = 10**9
"""Free disk space in bytes that is not used."""


def frames_folder() -> Path:
    """Return the folder of decoded frames."""
    return cache_folder("frames")


def decode_once(
    file: DatasetFile, field: Field, demos: Mapping[str, int], threads: Executor
) -> tuple[Path | None, str]:
    """Return the cache file of an array, and make it if there is none.

    Args:
        file: the demonstration file.
        field: the array to decode.
        demos: the wanted demos in order, with their lengths.
        threads: executor that decodes the frames.

    Returns:
        the cache file, with all steps of the demos in C order, or None if it cannot be made; and a line that names the
        file or the reason.

    Raises:
        DatasetError: a frame is damaged.
    """
    folder = frames_folder()
    size = sum(demos.values()) * field.step_bytes
    name = f"{file.path.stem}-{field.key.replace('/', '-')}-{_digest(file, field, demos)}.frames"
    path, partial = folder / name, folder / f"{name}.partial"
    if _is_whole(path, size):
        was_read(path)
        return path, f"{field.key} is read decoded from {path} ({gigabytes(size)})"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if size > (room := _room(path, partial, size)):
            words = f"{gigabytes(size)} do not fit, {gigabytes(room)} are left of IMITATE_CACHE_GB"
            return None, _without(field, words, "raise IMITATE_CACHE_GB")
        free = shutil.disk_usage(folder).free
        if free < size + _SPARE_BYTES:
            return None, _without(
                field, f"{gigabytes(size)} do not fit, {gigabytes(free)} are free"
            )
        with _being_made(partial) as out:
            if _is_whole(path, size):  # another process has made it meanwhile
                partial.unlink()
            else:
                _decode(file, field, demos, threads, out)
                give_name(partial, path)
    except OSError as error:
        return None, _without(field, f"{error.strerror or error}")
    return path, f"{field.key} was decoded once into {path} ({gigabytes(size)})"


def _room(path: Path, partial: Path, size: int) -> int:
    """Remove the least recently used frames that are not in use; return the number of bytes that may be written.

    Unfinished files of killed processes are removed, too.
    """
    limit = limit_bytes()
    found = [*path.parent.glob("*.frames"), *path.parent.glob("*.frames.partial")]
    others = [file for file in found if file not in (path, partial)]
    return int(max(0.0, limit - remove_oldest(others, limit - size if size <= limit else limit)))


def _without(
    field: Field, reason: str, advice: str = "set IMITATE_CACHE to a folder with room"
) -> str:
    return f"{field.key} is decoded for each batch, slowly: {frames_folder()}: {reason}; {advice}"


def _digest(file: DatasetFile, field: Field, demos: Iterable[str]) -> str:
    described = [
        _VERSION,
        file.fingerprint(),
        file.hdf5_path.stat().st_mtime_ns,
        field.key,
        field.shape,
        str(field.dtype),
        list(demos),
    ]
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def _is_whole(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _decode(
    file: DatasetFile,
    field: Field,
    demos: Mapping[str, int],
    threads: Executor,
    out: IO[bytes],
) -> None:
    out.truncate(0)
    words = f"decoding {field.key}"
    with ProgressBar(
        total=sum(demos.values()), desc=words, unit=" frames", delay=2, disable=None
    ) as bar:
        for demo, length in demos.items():
            for _, values in read_pieces(file, demo, length, field, threads):
                out.write(values.data)
                bar.update(len(values))
    out.flush()


@contextmanager
def _being_made(path: Path) -> Iterator[IO[bytes]]:
    """Open the unfinished file for writing while no other process writes it; remove it if an error occurs."""
    with locked(path) as file:
        try:
            yield file
        except BaseException:
            path.unlink(missing_ok=True)
            raise
