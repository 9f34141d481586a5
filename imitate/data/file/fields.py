"""Fields: the arrays of a file that a dataset uses, and their form in memory."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.file.faults import check_finite, check_numeric
from imitate.data.file.hdf5_format import DemoFile
from imitate.errors import DatasetError, nearest
from imitate.system.text import SIGNALS

SCALARS = ("rewards", "dones", "terminals", "timeouts", "interventions")
"""Step arrays of shape (T,) that may be missing in a file."""
_COARSE = 8192.0
"""Absolute value above which neighbouring float32 numbers differ by a thousandth or more."""
_PIECE_BYTES = 2**22


@dataclass(frozen=True)
class Field:
    """One array over all demos.

    Attributes:
        key: path below the demo, such as 'obs/object'.
        shape: shape of one step.
        columns: slice of the packed columns; None for a field that is stored separately.
        dtype: float32, or uint8 for images.
        recorded: type in the file.
    """

    key: str
    shape: tuple[int, ...]
    columns: slice | None
    dtype: np.dtype[Any]
    recorded: np.dtype[Any] = np.dtype(np.float32)

    @property
    def step_bytes(self) -> int:
        """Size in bytes of one step."""
        return math.prod(self.shape) * self.dtype.itemsize


def lay_out(file: DemoFile, demo: str, keys: Sequence[str]) -> dict[str, Field]:
    """Return the fields for ``keys``, in the order of their columns, from the arrays of one demo.

    Vectors and scalars become adjacent float32 columns. Arrays with two or more dimensions per step, such as images and
    scans, are stored separately: uint8 unchanged, all others as float32.
    """
    fields, column = {}, 0
    for key in keys:
        shape, dtype = _step(file, demo, key)
        if len(shape) >= 2:
            kept = dtype if dtype == np.uint8 else np.dtype(np.float32)
            fields[key] = Field(key, shape, None, kept, dtype)
            continue
        width = math.prod(shape)
        fields[key] = Field(key, shape, slice(column, column + width), np.dtype(np.float32), dtype)
        column += width
    return fields


def _step(file: DemoFile, demo: str, key: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if key in SCALARS:
        return (), np.dtype(np.float32)
    check_numeric(file, demo, key)
    if key.startswith(SIGNALS):
        return (), file.dtype(demo, key)
    shape = file.shape(demo, key)[1:]
    if not shape and not key.startswith(("obs/", "next_obs/")):
        shape = (1,)  # a scalar per step, stored as (T,)
    return shape, file.dtype(demo, key)


def read_steps(
    file: DemoFile,
    demo: str,
    field: Field,
    start: int,
    stop: int,
    threads: Executor | None = None,
) -> NDArray[Any]:
    """Read steps ``start`` to ``stop`` of a demo's array for a :class:`Field`, in the type of the file."""
    if field.key in SCALARS:
        return _scalars(file, demo, field.key, start, stop)
    values = file.read(demo, field.key, start, stop, threads)
    return values.reshape(stop - start, *field.shape)


def read_pieces(
    file: DemoFile, demo: str, length: int, field: Field, threads: Executor | None = None
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Read an array of ``length`` steps for a :class:`Field`; yield pieces of some megabytes with their first step.

    Raises:
        DatasetError: a value is NaN, infinite, or exceeds float32.
    """
    size = max(1, _PIECE_BYTES // max(1, field.step_bytes))
    for start in range(0, length, size):
        values = read_steps(file, demo, field, start, min(start + size, length), threads)
        if field.dtype == np.float32:
            with np.errstate(
                over="ignore"
            ):  # values beyond float32 become inf, which is refused below
                narrow = values.astype(np.float32, copy=False)
            check_narrowing(values, narrow, file, demo, field.key)
            values = narrow
        check_finite(values, file, demo, field.key, start)
        yield start, np.ascontiguousarray(values)


def check_narrowing(
    values: NDArray[Any], narrow: NDArray[np.float32], file: DemoFile, demo: str, key: str
) -> None:
    """Refuse numbers whose changes are lost in float32, such as clock times, counters and large offsets.

    Raises:
        DatasetError: more than a tenth of the changes of a number between steps would be lost.
    """
    if values.dtype.itemsize < 4 or values.dtype == np.float32 or not len(values):
        return
    with np.errstate(invalid="ignore"):  # other checks refuse values that are not finite
        if not max(narrow.max(initial=0.0), -narrow.min(initial=0.0)) >= _COARSE:
            return
    rows, narrow_rows = values.reshape(len(values), -1), narrow.reshape(len(values), -1)
    changes = rows[1:] != rows[:-1]
    lost = (changes & (narrow_rows[1:] == narrow_rows[:-1])).sum(0)
    found = np.flatnonzero(lost > 0.1 * changes.sum(0))
    if len(found):
        place = f"'{key}'" if rows.shape[1] == 1 else f"number {found[0]} of '{key}'"
        raise DatasetError(
            f"{file.path}: demo '{demo}': {place} is {values.dtype} near {rows[0, found[0]]:.10g}, "
            "but networks compute in float32, where its changes are lost: subtract an offset in the "
            "file, or leave the key out of the observations"
        )


def _scalars(file: DemoFile, demo: str, key: str, start: int, stop: int) -> NDArray[Any]:
    """Read steps ``start`` to ``stop`` of an array of :data:`SCALARS`, or derive the values if the array is missing.

    If only one of ``dones`` and ``terminals`` exists, it is used for both; without both, no step is terminal. Missing
    ``timeouts`` are true only at a last step that is not terminal. Missing rewards are 0. Without ``interventions``, a
    person is assumed to have acted at every step.
    """
    source = scalar_source(file, demo, key)
    if source is not None:
        values = file.read(demo, source, start, stop)
        if values.size != stop - start:
            raise DatasetError(
                f"{file.path}: demo '{demo}': '{source}' has shape {file.shape(demo, source)}: expected (T,), one "
                "number per step"
            )
        return values.reshape(stop - start)
    values = np.full(stop - start, float(key == "interventions"), dtype=np.float32)
    if key == "timeouts" and stop == file.length(demo):
        values[-1] = float(not _scalars(file, demo, "terminals", stop - 1, stop)[0])
    return values


def scalar_source(file: DemoFile, demo: str, key: str) -> str | None:
    """Return the array from which a key of :data:`SCALARS` is read, or None if it must be derived."""
    stand_in = {"dones": "terminals", "terminals": "dones"}
    names = (key, stand_in.get(key, key))
    return next((name for name in names if file.has(demo, name)), None)


def check_step_key(file: DemoFile, demo: str, key: str) -> None:
    """Refuse a key of ``dataset_keys`` or ``action_keys`` that is missing in the file and cannot be derived."""
    if key in SCALARS or file.has(demo, key):
        return
    if key.startswith(SIGNALS):
        raise lacks_signal(file, demo, key)
    known = [
        name for name in ("actions", "actions_abs", "states", *SCALARS) if file.has(demo, name)
    ]
    known += [f"action_dict/{name}" for name in file.obs_keys(demo, "action_dict")]
    raise DatasetError(
        f"{file.path}: demo '{demo}' has no '{key}'; {nearest(key, known)}: correct train.action_keys or "
        "train.dataset_keys"
    )


def lacks_signal(file: DemoFile, demo: str, key: str) -> DatasetError:
    """Return the error for a demo without the array ``key`` of a named reward."""
    name = key.removeprefix(SIGNALS)
    known = ", ".join(file.obs_keys(demo, SIGNALS.rstrip("/"))) or "none"
    return DatasetError(
        f"{file.path}: demo '{demo}' has no '{key}', which algo.rewards names (it has: {known}): record it with "
        f"`imitate collect --signals {name}`, or name an array that has these numbers with `imitate dataset "
        f"rename-key FILE ARRAY {key} --out NEW`"
    )
