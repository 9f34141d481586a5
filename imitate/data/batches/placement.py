"""Placement of the fields of a store: in RAM or in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from imitate.data.file.fields import Field
from imitate.errors import DatasetError
from imitate.system.memory import gigabytes

CACHE_MODES = ("auto", "all", "low_dim", None)
_SHARE_OF_FREE = 0.8
"""Largest fraction of the free memory that 'auto' uses; the rest is for networks and simulators."""


@dataclass(frozen=True)
class Placement:
    """Locations of the fields of a store.

    Attributes:
        packed_in_ram: true if the packed columns are in RAM.
        apart_in_ram: fields with two or more dimensions per step that are in RAM.
        image_bytes: size in bytes of each field with two or more dimensions per step, whether in RAM or not.
        free_bytes: free memory when the placement was decided.
    """

    packed_in_ram: bool
    apart_in_ram: frozenset[str]
    image_bytes: Mapping[str, int]
    free_bytes: int

    def without(self, key: str) -> Placement:
        """Return the placement of the other fields."""
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


def place(
    fields: Mapping[str, Field], steps: int, cache_mode: str | None, free_bytes: int, path: Path
) -> Placement:
    """Choose the placement by the cache mode, for 'auto' by what fits.

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
