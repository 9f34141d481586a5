"""Conversion of nested values of gymnasium spaces to flat arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from imitate.data.formats.gym_arrays import named_obs, one_hot, turned
from imitate.data.formats.report import Report
from imitate.errors import DatasetError
from imitate.functional.image_layout import image_layout, nested_name


def leaves(value: Any, space: Any, report: Report, name: str = "") -> dict[str, NDArray[Any]]:
    """Return observations by name: 'flat' or 'image' for a single Box, else the keys, joined like the environment's."""
    found: dict[str, NDArray[Any]] = {}
    if isinstance(space, spaces.Dict):
        for key, below in space.spaces.items():
            part = leaves(value[key], below, report, nested_name(name, key))
            _check_apart(found, part)
            found.update(part)
    elif isinstance(space, spaces.Tuple):
        for number, below in enumerate(space.spaces):
            found.update(leaves(value[number], below, report, nested_name(name, str(number))))
    elif isinstance(space, spaces.Text):
        report.dropped[f"observations/{name}"] = "text"
    elif isinstance(space, spaces.Discrete):
        found[name or "flat"] = one_hot(np.asarray(value) - int(space.start), int(space.n))
        report.changed[f"obs/{name or 'flat'}"] = f"index -> one-hot of {space.n}"
    else:
        values = _frames(np.asarray(value), space)
        if name:
            layout = image_layout(values.shape[1:], values.dtype)
            found[name] = turned(values, layout, f"obs/{name}", report)
        else:
            key, values = named_obs(values, "observations", report)
            found[key] = values
    return found


def _check_apart(found: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """Refuse two observations with the same flat name, such as a_b beside b in a."""
    both = sorted(found.keys() & others.keys())
    if both:
        raise DatasetError(
            f"two of its observations are called '{both[0]}' once they are not nested: rename one"
        )


def _frames(values: NDArray[Any], space: Any) -> NDArray[Any]:
    """Restore frames that were stored as int16 to avoid a lossy encoder."""
    is_box = isinstance(space, spaces.Box) and space.dtype == np.int16
    if is_box and bool(np.all(space.low == 0)) and bool(np.all(space.high == 255)):
        return values.astype(np.uint8)
    return values


def action_columns(value: Any, space: Any, where: str, report: Report) -> NDArray[Any]:
    """Return actions (T, A): a Box is flattened, Discrete becomes one-hot, a Dict or Tuple is concatenated."""
    if isinstance(space, spaces.Dict):
        parts = [
            action_columns(value[key], below, where, report) for key, below in space.spaces.items()
        ]
        report.changed["actions"] = f"{', '.join(space.spaces)} side by side"
        return np.concatenate(parts, axis=1)
    if isinstance(space, spaces.Tuple):
        parts = [
            action_columns(v, below, where, report)
            for v, below in zip(value, space.spaces, strict=True)
        ]
        report.changed["actions"] = f"{len(parts)} parts side by side"
        return np.concatenate(parts, axis=1)
    if isinstance(space, spaces.Discrete):
        report.changed["actions"] = f"index -> one-hot of {space.n}"
        return one_hot(np.asarray(value) - int(space.start), int(space.n))
    if isinstance(space, spaces.Text):
        raise DatasetError(f"{where}: actions are texts, but only numbers can be imitated")
    values = np.asarray(value)
    return values.reshape(len(values), -1)


def space_of(values: NDArray[Any], frames: bool = False) -> spaces.Box:
    """Return the Box of values (T, ...): all numbers of the type.

    Or 0 to 255 for ``frames``, which are uint8 stored as int16.
    """
    step, dtype = values.shape[1:], values.dtype
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, step, dtype.type)
    if frames:
        return spaces.Box(0, 255, step, dtype.type)
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    low, high = (limits.min, limits.max) if limits is not None else (0, 1)
    return spaces.Box(low, high, step, dtype.type)
