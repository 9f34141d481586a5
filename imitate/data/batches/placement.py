"""Placement of the fields of a store: in RAM, in the file, or in a cache of decoded images that all processes read.

A cache file contains one array of a demonstration file for all wanted demos, one after the other, in the same layout as
in RAM. The name of the cache file depends on the content and modification time of the demonstration file, the array and
the demos. The folder is ``frames`` in the cache (:mod:`imitate.data.file.cache`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from imitate.data.dataset_file import DatasetFile
from imitate.data.file.cache import cache_folder, limit_bytes, remove_oldest, was_read
from imitate.data.file.fields import Field, read_pieces
from imitate.errors import DatasetError
from imitate.system.memory import ALWAYS_BYTES, gigabytes
from imitate.system.plain_files import give_name, locked
from imitate.system.text import ProgressBar

CACHE_MODES = ("auto", "all", "low_dim", None)
_STEP_BYTES = 128
"""Bytes of memory per step, in addition to the data, for computing rewards, transitions, positions and weights
(measured: 45 for bc, 96 for iql).
"""
_SHARE_OF_FREE = 0.8
"""Largest fraction of the free memory that 'auto' uses; the rest is for networks and simulators."""


@dataclass(frozen=True)
class Placement:
    """Locations of the fields of a store.

    Attributes:
        packed_in_ram: true if the packed columns are in RAM.
        apart_in_ram: keys of fields with two or more dimensions per step that are in RAM.
        image_bytes: size in bytes of each field with two or more dimensions per step, in RAM or not.
        free_bytes: free memory when the placement was decided.
    """

    packed_in_ram: bool
    apart_in_ram: frozenset[str]
    image_bytes: Mapping[str, int]
    free_bytes: int

    def without(self, key: str) -> Placement:
        """Return the placement without a field."""
        images = {name: size for name, size in self.image_bytes.items() if name != key}
        return replace(self, apart_in_ram=self.apart_in_ram - {key}, image_bytes=images)

    @property
    def words(self) -> str:
        """Describe the placement in one line, or return an empty string if there are no images."""
        ram = [key for key in self.image_bytes if key in self.apart_in_ram]
        file = [key for key in self.image_bytes if key not in self.apart_in_ram]
        free = gigabytes(self.free_bytes)
        in_ram = gigabytes(sum(self.image_bytes[key] for key in ram))
        in_file = gigabytes(sum(self.image_bytes[key] for key in file))
        if ram and file:
            names = ", ".join(key.rpartition("/")[2] for key in ram)
            return f"images: {names} in RAM ({in_ram} of {free} free), the others stay in the file ({in_file})"
        if ram:
            return f"images: {in_ram} in RAM (of {free} free)"
        return f"images stay in the file: {in_file}, {free} free" if file else ""


def check_steps(steps: int, free_bytes: int, path: Path) -> int:
    """Return the memory in bytes that the steps need in addition to their data; a small amount is returned as 0.

    Raises:
        DatasetError: there is not enough free memory, as for a small file with very many compressed steps.
    """
    taken = steps * _STEP_BYTES
    if taken <= ALWAYS_BYTES:
        return 0
    if taken > free_bytes:
        raise DatasetError(
            f"{path}: {steps} steps take {gigabytes(taken)} of memory besides their data, and "
            f"{gigabytes(free_bytes)} are free: use fewer demos (demo_limit in train.data), or split the file"
        )
    return taken


def place(
    fields: Mapping[str, Field], steps: int, cache_mode: str | None, free_bytes: int, path: Path
) -> Placement:
    """Select the fields to keep in RAM for a cache mode; with 'auto', as many as fit into the free memory.

    Args:
        fields: fields of the store.
        steps: N, number of rows of the store.
        cache_mode: one of :data:`CACHE_MODES`.
        free_bytes: free memory in bytes.
        path: path of the file, for messages.

    Raises:
        DatasetError: the fields that the mode requires in RAM do not fit.
    """
    packed = steps * sum(field.step_bytes for field in fields.values() if field.columns)
    images = {
        key: steps * field.step_bytes for key, field in fields.items() if field.columns is None
    }
    if cache_mode == "auto":
        return _what_fits(packed, images, free_bytes)
    wanted = 0 if cache_mode is None else packed
    wanted += sum(images.values()) if cache_mode == "all" else 0
    if wanted > free_bytes:
        remedy = "'auto' or 'low_dim'" if cache_mode == "all" else "'auto' or null"
        raise DatasetError(
            f"{path}: train.hdf5_cache_mode is '{cache_mode}', but that takes {gigabytes(wanted)} of RAM and "
            f"{gigabytes(free_bytes)} are free: set it to {remedy}, so that what does not fit stays in the file"
        )
    in_ram = frozenset(images) if cache_mode == "all" else frozenset()
    return Placement(cache_mode is not None, in_ram, images, free_bytes)


def _what_fits(packed: int, images: Mapping[str, int], free_bytes: int) -> Placement:
    """Place first the packed columns, then the images in order, as far as they fit."""
    left = int(free_bytes * _SHARE_OF_FREE)
    packed_fits = packed <= left
    left -= packed if packed_fits else 0
    in_ram = set()
    for key, size in images.items():
        if size <= left:
            in_ram.add(key)
            left -= size
    return Placement(packed_fits, frozenset(in_ram), images, free_bytes)


_VERSION = 1
_SPARE_BYTES = 10**9
"""Free disk space in bytes that is left unused."""


def frames_folder() -> Path:
    """Return the folder of decoded frames."""
    return cache_folder("frames")


def decode_once(
    file: DatasetFile, field: Field, demos: Mapping[str, int], threads: Executor
) -> tuple[Path | None, str]:
    """Return the cache file with the decoded frames of an array; create the file if it is missing.

    Args:
        file: the demonstration file.
        field: the array to decode.
        demos: the wanted demos in order, with their lengths.
        threads: executor that decodes the frames.

    Returns:
        the cache file, with all steps of the demos in C order, or None if it cannot be created; and a line for the log,
        with the name of the file or the reason.

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
            if _is_whole(path, size):  # another process has created the file
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
    """Open the unfinished file for writing, locked against other processes; remove the file if an error occurs."""
    with locked(path) as file:
        try:
            yield file
        except BaseException:
            path.unlink(missing_ok=True)
            raise
