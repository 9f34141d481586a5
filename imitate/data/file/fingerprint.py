"""Fingerprint that identifies the content of a demonstration file, quickly for a file of any size.

All names, lengths and actions are read. Of the other data that a training may read (observations, rewards, terminals,
weights, success, instructions), small arrays are read completely and larger ones at some fixed steps; if a file has
very many arrays, only the arrays of some demos are read. A change of a few steps of a large array may go unnoticed, but
replaced data are always noticed.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from imitate.data.file.extents import Extent, Extents
from imitate.data.file.hdf5_format import DemoFile
from imitate.errors import DatasetError
from imitate.system.instructions import TASK_ATTRS

CONTENT_VERSION = 1
"""Version of ``content_sha256``; digests of different versions cannot be compared."""
_ATTRS = ("success", "num_samples", *TASK_ATTRS)
_WHOLE_BYTES = 2**14
_STEPS = 4
_MOST_ARRAYS = 3000
_MOST_STEP_BYTES = 2**24
_UNPACKED_DEMOS = 25
"""Number of demos whose large arrays are read if HDF5 has to decode them."""
Item = TypeVar("Item")


def fingerprint(file: DemoFile) -> dict[str, Any]:
    """Return the file size, counts, a SHA-256 of names, lengths and actions, and a SHA-256 of samples of all arrays.

    Raises:
        DatasetError: an array is damaged.
    """
    digest = hashlib.sha256(str(file.file_attrs.get("env_args")).encode())
    demos = file.demos()
    steps = 0
    with Extents(file) as extents:
        chosen = _chosen(extents, demos)
        for demo in demos:
            # if all arrays of a demo are read, each is opened only once
            read = extents.read if demo in chosen else file.read
            actions = np.ascontiguousarray(read(demo, "actions", 0, None))
            steps += len(actions)
            digest.update(_bytes(f"{demo} {actions.shape} {actions.dtype}"))
            digest.update(actions.tobytes())
        content = _content(extents, list(chosen))
    return {
        "size_bytes": file.hdf5_path.stat().st_size,
        "num_demos": len(demos),
        "num_steps": steps,
        "sha256": digest.hexdigest(),
        "content_version": CONTENT_VERSION,
        "content_sha256": content,
    }


def _chosen(extents: Extents, demos: Sequence[str]) -> dict[str, None]:
    """Choose the demos of which all arrays are read: every demo if there are few arrays in total."""
    if not demos:
        return {}
    most = max(2, _MOST_ARRAYS // max(1, len(extents.of(demos[0]))))
    return dict.fromkeys(_spread(demos, most))


def _content(extents: Extents, chosen: Sequence[str]) -> str:
    digest = hashlib.sha256()
    unpacked = set(_spread(chosen, _UNPACKED_DEMOS))
    for demo in chosen:
        attrs = extents.file.attrs(demo, _ATTRS)
        digest.update(_bytes(f"{demo} {sorted(attrs.items())}"))
        for key, extent in extents.of(demo).items():
            digest.update(_bytes(f"{key} {extent.shape} {extent.dtype.str}"))
            for start, stop in _samples(extent, demo in unpacked):
                digest.update(_values(extents, demo, key, start, stop))
    return digest.hexdigest()


def _samples(extent: Extent, unpack: bool) -> list[tuple[int, int]]:
    """Choose the steps to read: all of a small array, some of a larger one; compressed arrays only with ``unpack``."""
    length = extent.shape[0]
    step_bytes = math.prod(extent.shape[1:]) * extent.dtype.itemsize
    if step_bytes * length <= _WHOLE_BYTES:
        return [(0, length)]
    if step_bytes > _MOST_STEP_BYTES or (extent.offset is None and not unpack):
        return []
    return [(step, step + 1) for step in _spread(range(length), _STEPS)]


def _values(extents: Extents, demo: str, key: str, start: int, stop: int) -> bytes:
    """Return the values of some steps as bytes; individually compressed frames are not decoded."""
    try:
        if extents.of(demo)[key].offset is not None:
            return extents.read(demo, key, start, stop).tobytes()
        array = extents.file.array(demo, key)
        with extents.file.reading(f"demo '{demo}', '{key}'"):
            values = array[start:stop]
    except DatasetError:
        return b"unreadable"  # a run that trains on this array will get the error
    if values.dtype.kind != "O":
        return bytes(values.tobytes())
    return b"".join(_bytes(item) for item in values.ravel())


def _bytes(item: Any) -> bytes:
    if isinstance(item, str):
        return item.encode("utf-8", "surrogateescape")
    return item if isinstance(item, bytes) else np.asarray(item).tobytes()


def _spread(items: Sequence[Item], count: int) -> list[Item]:
    """Choose at most ``count`` evenly spread items, including the first and the last one."""
    if len(items) <= count:
        return list(items)
    at = np.linspace(0, len(items) - 1, count).round().astype(np.int64)
    return [items[i] for i in at.tolist()]
