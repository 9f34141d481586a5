"""Features of a LeRobot dataset: their names, and the arrays of a demonstration file that they become or come from.

When we write a dataset, arrays that came from LeRobot get their original features: the attribute ``features`` names the
feature of each array (:mod:`imitate.data.file.features`), and additional vectors become features of their own. For
other datasets, the vectors of ``obs`` are concatenated to ``observation.state``, in the order of their names, and
``object`` becomes ``observation.environment_state``.

When a dataset is read, LeRobot's own names are ``observation.*`` and ``action``. Many datasets have other names, such
as ``state``, ``wrist_image`` and ``actions`` of openpi's conversions. If a dataset has no ``observation.*``, its images
and vectors of floats are observations, except features with a name such as ``reward``.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.file.features import dimension_names
from imitate.errors import DatasetError

STATE, ENVIRONMENT = "observation.state", "observation.environment_state"
ENDS = ("next.done", "next.truncated", "next.success")
AUTOMATIC = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
"""Columns that every LeRobot dataset has, and their types."""
Entries = Mapping[str, Mapping[str, Any]]
Layout = Mapping[str, Any]
"""Maps an array to [feature, first column, last column + 1], or to [feature] if the array is the whole feature."""


def layout_of(arrays: Mapping[str, NDArray[Any]], known: Entries) -> dict[str, Any]:
    """Return the layout (:data:`Layout`) of all arrays that become features or parts of features.

    Args:
        arrays: arrays of the first demo.
        known: entries of ``features`` by array, for a dataset that came from LeRobot; {} for others.
    """
    if known:
        return _as_it_was(arrays, known)
    found: dict[str, Any] = {
        "actions": ["action", 0, arrays["actions"].shape[1]],
        "rewards": ["next.reward"],
    }
    used = {STATE: 0, ENVIRONMENT: 0}
    for key in sorted(arrays):
        name, values = key.removeprefix("obs/"), arrays[key]
        if not key.startswith("obs/") or "/" in name:
            continue
        if is_image(values):
            found[key] = [_camera(name)]
        elif _is_vector(values):
            feature = ENVIRONMENT if name == "object" else STATE
            width = values.shape[1]
            found[key] = [feature, used[feature], used[feature] + width]
            used[feature] += width
    return found


def _as_it_was(arrays: Mapping[str, NDArray[Any]], known: Entries) -> dict[str, Any]:
    found = {"actions": ["action"]}
    for key, entry in known.items():
        if key in arrays and (_is_camera(entry) == is_image(arrays[key])):
            found[key] = [entry["feature"]]
    for key in sorted(arrays):
        name = key.removeprefix("obs/")
        if key in found or not key.startswith("obs/") or "/" in name:
            continue
        if is_image(arrays[key]):
            found[key] = [_camera(name)]
        elif _is_vector(arrays[key]):
            found[key] = [f"observation.{name}"]
    return found


def _camera(name: str) -> str:
    return f"observation.images.{name.removesuffix('_image')}"


def _is_camera(entry: Mapping[str, Any]) -> bool:
    return entry.get("dtype") in ("image", "video")


def is_image(values: NDArray[Any]) -> bool:
    """Return true for RGB frames (T, H, W, 3) of uint8."""
    return values.ndim == 4 and values.dtype == np.uint8 and values.shape[-1] == 3


def _is_vector(values: NDArray[Any]) -> bool:
    return values.ndim == 2 and values.dtype.kind in "fiu" and values.shape[1] > 0


def to_features(
    arrays: dict[str, NDArray[Any]], layout: Layout, known: Entries
) -> dict[str, NDArray[Any]]:
    """Return the features of a demo; arrays that the features store exactly are removed from ``arrays``."""
    parts: dict[str, list[NDArray[Any]]] = {}
    for key, place in layout.items():
        values = arrays[key]
        dtype = dtype_of(known.get(key, {}), values)
        if values.dtype == dtype:
            del arrays[key]
        kept = values if is_image(values) else values.astype(dtype)
        parts.setdefault(place[0], []).append(kept[:, None] if kept.ndim == 1 else kept)
    return {name: np.concatenate(found, axis=-1) for name, found in parts.items()}


def dtype_of(entry: Mapping[str, Any], values: NDArray[Any]) -> np.dtype[Any]:
    """Return the dtype in which a feature is written: the type in its entry, or else float32."""
    if is_image(values):
        return np.dtype(np.uint8)
    try:
        found = np.dtype(entry.get("dtype", "float32"))
    except TypeError:  # for example 'string', which is not a numpy type
        found = np.dtype(np.float32)
    return found if found.kind in "fiub" else np.dtype(np.float32)


def from_features(values: Mapping[str, NDArray[Any]], layout: Layout) -> dict[str, NDArray[Any]]:
    """Return the arrays of a demo that this package wrote, by their original names."""
    found = {}
    for key, (feature, *columns) in layout.items():
        whole = values[feature]
        if columns:
            whole = whole.reshape(len(whole), -1)[:, columns[0] : columns[1]]
        elif whole.ndim == 1 and (key == "actions" or key.startswith("obs/")):
            whole = whole[:, None]
        found[key] = whole
    return found


def names_of(feature: str, layout: Layout) -> list[str] | None:
    """Return a name for each component of a feature that is concatenated from arrays; None for other features."""
    names = [
        f"{key.rpartition('/')[2]}.{column - place[1]}"
        for key, place in layout.items()
        if place[0] == feature and len(place) == 3
        for column in range(place[1], place[2])
    ]
    return names or None


def described(feature: str, values: NDArray[Any], layout: Layout, entry: Any) -> dict[str, Any]:
    """Return the entry of a feature in ``meta/info.json``: the original one if the shape has not changed.

    Args:
        feature: name of the feature.
        values: (T, ...) of one demo.
        layout: layout of the dataset.
        entry: entry of the original LeRobot dataset, or None.
    """
    shape = list(values.shape[1:]) or [1]
    dtype = AUTOMATIC.get(feature) or ("bool" if values.dtype == bool else str(values.dtype))
    if entry is None:
        return {"dtype": dtype, "shape": shape, "names": names_of(feature, layout)}
    kept = {key: value for key, value in entry.items() if key != "feature"}
    if list(entry.get("shape") or ()) == shape:
        return {**kept, "dtype": dtype}
    names = kept.get("names")
    fits = len(shape) == 1 and len(dimension_names(names)) == shape[0]
    return {**kept, "dtype": dtype, "shape": shape, "names": names if fits else None}


def described_image(values: NDArray[Any], entry: Any, *, video: bool) -> dict[str, Any]:
    """Return the entry of frames (T, H, W, 3), like :func:`described`; for videos ``info`` is still missing."""
    shape = list(values.shape[1:])
    plain = {"shape": shape, "names": ["height", "width", "channels"]}
    kept = {key: value for key, value in (entry or {}).items() if key not in ("feature", "info")}
    kept.pop("video_info", None)
    if sorted(kept.get("shape") or ()) != sorted(shape):
        kept.update(plain)
    return {**plain, **kept, "dtype": "video" if video else "image"}


# ---- names of a dataset that is read -------------------------------------------------------------

_PREFIX = "observation."
_ACTIONS = ("action", "actions")
_NO_OBSERVATION = re.compile(
    r"^next\.|action|reward|return|done|terminal|truncat|success|discount|weight|index|time"
)


def obs_name(feature: str) -> str:
    """Return an observation's name in a demonstration file: ``observation.images.top`` becomes ``top_image``."""
    name = feature.removeprefix(_PREFIX)
    return f"{name[7:]}_image" if name.startswith("images.") else name


def action_of(features: Mapping[str, Any], chosen: str | None, where: str) -> str:
    """Return the feature that contains the actions.

    Args:
        features: entries of the features by name.
        chosen: name given by the user, or None.
        where: the dataset, for the message.

    Raises:
        DatasetError: there is no such feature.
    """
    names = _ACTIONS if chosen is None else (chosen,)
    found = next((name for name in names if name in features), None)
    if found is None:
        others = ", ".join(name for name in features if name not in AUTOMATIC)
        raise DatasetError(
            f"{where}: has no feature {' or '.join(map(repr, names))} (it has {others}): name the one that "
            f"contains the actions: `imitate dataset convert {where} NEW.hdf5 --action FEATURE`"
        )
    return found


def keys_of(features: Mapping[str, Any], action: str | None = None) -> dict[str, str]:
    """Return, for each feature, the name of the array that it becomes in a demonstration file.

    Args:
        features: entries of the features by name.
        action: feature that contains the actions; None for ``action``, or else ``actions``.
    """
    given = next((name for name in (action, *_ACTIONS) if name in features), None)
    has_usual = any(name.startswith(_PREFIX) for name in features)
    found = {}
    for name, entry in features.items():
        is_obs = name.startswith(_PREFIX) or not has_usual and _is_observation(name, entry)
        if name == given:
            found[name] = "actions"
        else:
            found[name] = f"obs/{obs_name(name)}" if is_obs else name
    if given != "actions" and "actions" in found:
        found["actions"] = "other_actions"
    found.update({"next.reward": "rewards"} if "next.reward" in features else {})
    return found


def _is_observation(name: str, entry: Mapping[str, Any]) -> bool:
    if name in AUTOMATIC or _NO_OBSERVATION.search(name.lower()):
        return False
    dtype = str(entry.get("dtype"))
    return dtype in ("image", "video") or dtype.startswith("float")


def unusual_names(keys: Iterable[tuple[str, str]]) -> str:
    """Describe the arrays that features with unusual names became; "" if all features have LeRobot's usual names.

    Args:
        keys: pairs of a feature and the array that it became.
    """
    found = [
        f"{name} -> {key}"
        for name, key in keys
        if (key.startswith("obs/") and not name.startswith(_PREFIX) and name != key)
        or (key == "actions" and name not in _ACTIONS)
    ]
    return ", ".join(found)
