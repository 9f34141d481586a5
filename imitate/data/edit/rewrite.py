"""Copying of a demonstration file with changes: fewer demos, other keys, other rows, other values."""

import errno
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from imitate.data.dataset_file import DatasetFile
from imitate.data.file.confined import ConfinedFile, check_below
from imitate.data.file.encoded_frames import VIDEO_ATTRS, encode_image
from imitate.data.file.hdf5_format import DemoFile
from imitate.data.file.image_codec import FrameReader, storage_of
from imitate.errors import DatasetError, nearest
from imitate.system.text import SIGNALS

_PIECE_BYTES = 16 * 2**20
_PIECE_FRAMES = 32
Values = NDArray[Any]


STEP_ARRAYS = frozenset(
    ("actions", "actions_abs", "rewards", "dones", "terminals", "timeouts", "states")
    + ("interventions", "policy_actions", "executed_actions", "labelled", "round")
)


def is_per_step(key: str) -> bool:
    """Return true if an array with this name has one row per step."""
    return key in STEP_ARRAYS or key.startswith(("obs/", "next_obs/", "action_dict/", SIGNALS))


@dataclass(frozen=True)
class Rows:
    """Rows of a demo that are kept.

    Attributes:
        seen: (n,) kept rows of ``obs`` and ``next_obs``.
        done: (n,) kept rows of all other arrays.
    """

    seen: NDArray[np.int64]
    done: NDArray[np.int64]

    def of(self, key: str) -> NDArray[np.int64]:
        """Return the kept rows of array ``key``, in order."""
        return self.seen if key.startswith(("obs/", "next_obs/")) else self.done


@dataclass(frozen=True)
class FileChanges:
    """Differences between a file and its copy.

    Attributes:
        demos: demos to keep, in any order; None for all.
        drop: arrays to leave out, such as 'obs/object'.
        rename: new names of arrays by old names.
        rows: rows to keep in arrays with a row per step, by demo; all rows are kept in demos without an entry.
        values: function that changes the values of an array, by its old name; called with pieces of a few steps.
        masks: filter keys to write; None for the filter keys of the file. Demos that are not kept are removed from
            them.
        attrs: attributes of ``data`` to set; an attribute with the value None is removed.
    """

    demos: Collection[str] | None = None
    drop: Collection[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, Rows] = field(default_factory=dict)
    values: Mapping[str, Callable[[Values], Values]] = field(default_factory=dict)
    masks: Mapping[str, Sequence[str]] | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def touches(self, demo: str) -> bool:
        """Return true if a demo is changed when it is copied."""
        return bool(self.drop or self.rename or self.values or demo in self.rows)


def rewrite(
    source: Path,
    part: Path,
    changes: FileChanges,
    on_demo: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write a changed copy of ``source`` to ``part``; ``num_samples`` and ``total`` are recomputed.

    Args:
        source: a demonstration file.
        part: the file to write.
        changes: the changes in the copy.
        on_demo: called after each demo with the number of copied demos and the number of all demos.

    Raises:
        DatasetError: a kept demo cannot be read, or no demo is kept.
    """
    with (
        DatasetFile(source) as file,
        ConfinedFile(file.hdf5_path, "r") as old,
        h5py.File(part, "w") as new,
    ):
        names = file.demos()
        kept = [name for name in names if changes.demos is None or name in changes.demos]
        if not kept:
            raise DatasetError(f"{source}: no demo would be left: nothing is written")
        with file.reading("the part outside the demos"):
            _copy_around(old, new)
        total = 0
        for number, name in enumerate(kept, 1):
            with copying(file, name):
                total += copy_demo(old["data"][name], new["data"], name, changes)
            on_demo(number, len(kept))
        masks = read_masks(file) if changes.masks is None else changes.masks
        write_masks(new, {key: [d for d in demos if d in kept] for key, demos in masks.items()})
        new["data"].attrs["total"] = total
        for key, value in changes.attrs.items():
            if value is None:
                new["data"].attrs.pop(key, None)
            else:
                new["data"].attrs[key] = value


@contextmanager
def copying(file: DemoFile, demo: str) -> Iterator[None]:
    """Convert errors as :meth:`DemoFile.reading` does, except for a full disk, which is an error of writing."""
    try:
        with file.reading(f"demo '{demo}'"):
            yield
    except DatasetError as error:
        if os.strerror(errno.ENOSPC) in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise


def read_masks(file: DemoFile) -> dict[str, list[str]]:
    """Read the masks of a file, without names of demos that are not in it."""
    known = set(file.demos())
    return {key: [d for d in demos if d in known] for key, demos in file.filter_keys().items()}


def write_masks(new: h5py.File, masks: Mapping[str, Sequence[str]]) -> None:
    """Replace the masks of an open file; masks without demos are left out."""
    if "mask" in new:
        del new["mask"]
    for key, demos in masks.items():
        if demos:
            put_mask(new, key, demos)


def put_mask(file: h5py.File, name: str, demos: Sequence[str]) -> None:
    """Write one mask into an open file; a mask of that name is replaced."""
    masks = file.require_group("mask")
    if name in masks:
        del masks[name]
    names = [demo.encode("utf-8", "surrogateescape") for demo in demos]
    masks.create_dataset(name, data=np.array(names, dtype=np.bytes_))


def _copy_around(old: h5py.File, new: h5py.File) -> None:
    copy_attrs(old, new)
    for name in old:
        if name not in ("data", "mask"):
            found = old[name]
            check_below(found)
            old.copy(found, new, name=name)
    copy_attrs(old["data"], new.create_group("data"))


def copy_attrs(old: Any, new: Any) -> None:
    """Copy the attributes of a group or array to another group or array."""
    for name, value in old.attrs.items():
        if isinstance(name, bytes):
            raise DatasetError(
                f"{old.file.filename}: '{old.name}' has an attribute whose name {name!r} is not valid UTF-8: rename it"
            )
        new.attrs[name] = value


def copy_demo(demo: h5py.Group, data: h5py.Group, name: str, changes: FileChanges) -> int:
    """Copy one demo into the group ``data`` under ``name``.

    Returns:
        number of steps of the demo.
    """
    if not isinstance(demo, h5py.Group):
        raise ValueError("the demo is an array, but must be a group of arrays")
    old_name = demo.name.rpartition("/")[2]
    if changes.touches(old_name):
        new = data.create_group(name)
        copy_attrs(demo, new)
        _copy_group(demo, new, "", changes, changes.rows.get(old_name), _length(demo))
    else:
        check_below(demo)
        demo.file.copy(demo, data, name=name)
        new = data[name]
    length = _length(new)
    if new.attrs.get("num_samples") != length:
        new.attrs["num_samples"] = length
    return length


def _length(demo: h5py.Group) -> int:
    actions = demo.get("actions")
    return int(actions.shape[0]) if isinstance(actions, h5py.Dataset) and actions.shape else 0


def _copy_group(
    old: h5py.Group,
    root: h5py.Group,
    prefix: str,
    changes: FileChanges,
    rows: Rows | None,
    length: int,
) -> None:
    """Copy the arrays below ``old``, whose path below the demo is ``prefix``; the demo has ``length`` steps."""
    for name, item in old.items():
        key = prefix + name
        if key in changes.drop:
            continue
        if isinstance(item, h5py.Group):
            group = root.require_group(changes.rename.get(key, key))
            copy_attrs(item, group)
            _copy_group(item, root, f"{key}/", changes, rows, length)
            continue
        folder = changes.rename.get(key, key).rpartition("/")[0]
        has_rows = bool(item.shape) and (is_per_step(key) or item.shape[0] == length)
        into = root.require_group(folder) if folder else root
        _copy_array(item, into, key, changes, rows.of(key) if rows and has_rows else None)


def _copy_array(
    old: h5py.Dataset,
    into: h5py.Group,
    key: str,
    changes: FileChanges,
    chosen: NDArray[np.int64] | None,
) -> None:
    name = changes.rename.get(key, key).rpartition("/")[2]
    change = changes.values.get(key)
    if chosen is None and change is None:
        old.file.copy(old, into, name=name)
        return
    chosen = np.arange(old.shape[0]) if chosen is None else chosen[chosen < old.shape[0]]
    frame = storage_of(old).frame if old.dtype.kind == "O" else None
    if frame is not None and (change is not None or storage_of(old).kind == "video"):
        _copy_frames(old, into, name, chosen, change)
        return
    step_bytes = max(1, math.prod(old.shape[1:]) * old.dtype.itemsize)
    piece = max(1, _PIECE_BYTES // step_bytes)
    first = _rows(old, chosen[:piece], change)
    new = into.create_dataset(
        name,
        shape=(len(chosen), *first.shape[1:]),
        dtype=first.dtype if frame is None else old.dtype,
        chunks=_chunks(old, first),
        compression=old.compression,
        compression_opts=old.compression_opts,
        shuffle=old.shuffle or None,
    )
    copy_attrs(old, new)
    new[: len(first)] = first
    for start in range(piece, len(chosen), piece):
        values = _rows(old, chosen[start : start + piece], change)
        new[start : start + len(values)] = values


def _copy_frames(
    old: h5py.Dataset,
    into: h5py.Group,
    name: str,
    chosen: NDArray[np.int64],
    change: Callable[[Values], Values] | None,
) -> None:
    """Decode compressed frames and encode them again as PNGs or JPEGs, for changed frames or parts of a video."""
    frame, reader = storage_of(old).frame, FrameReader(old)
    encoding = "png" if reader.encoding == "png" else "jpeg"
    new = into.create_dataset(name, (len(chosen),), dtype=h5py.vlen_dtype(np.uint8))
    copy_attrs(old, new)
    for attribute in VIDEO_ATTRS:
        new.attrs.pop(attribute, None)
    new.attrs["encoding"], new.attrs["shape"] = encoding, frame
    for start in range(0, len(chosen), _PIECE_FRAMES):
        rows = chosen[start : start + _PIECE_FRAMES]
        low = int(rows.min())
        images = reader.read(low, int(rows.max()) + 1)[rows - low]
        images = images if change is None else change(images)
        if images.shape[1:] != frame or images.dtype != np.uint8:
            raise ValueError(
                f"compressed frames of shape {frame} cannot become {images.dtype} values of shape {images.shape[1:]}"
            )
        for step, image in enumerate(images):
            new[start + step] = encode_image(image, encoding)


def _chunks(old: h5py.Dataset, first: Values) -> tuple[int, ...] | bool | None:
    """Return the new array's chunk shape: the old one if it fits, else true for HDF5's choice; None without chunks."""
    if old.chunks is None:
        return None
    fits = first.shape[1:] == old.shape[1:] and len(first) >= old.chunks[0]
    return tuple(old.chunks) if fits else True


def _rows(
    old: h5py.Dataset, chosen: NDArray[np.int64], change: Callable[[Values], Values] | None
) -> Values:
    low, end = (int(chosen.min()), int(chosen.max()) + 1) if len(chosen) else (0, 0)
    values: Values = old[low:end]
    if len(values) != len(chosen) or (np.diff(chosen) != 1).any():
        values = values[chosen - low]
    return values if change is None else change(values)


def check_keys(file: DemoFile, keys: Collection[str]) -> None:
    """Refuse a key that is not an array or group of arrays of any demo.

    Raises:
        DatasetError: a key does not exist; the message names the nearest one.
    """
    known: set[str] = set()
    for demo in file.demos():
        known.update(file.keys(demo))
        if known.issuperset(keys):
            return
    groups = {key[:at] for key in known for at, letter in enumerate(key) if letter == "/"}
    for key in keys:
        if key not in known | groups:
            raise DatasetError(f"{file.path}: no demo has '{key}'; {nearest(key, known)}")
