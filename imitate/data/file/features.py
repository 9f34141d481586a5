"""Names that a dataset's arrays had where it came from: the attribute ``features`` of the group ``data``.

It is a JSON object from arrays to entries, in the order of the source's features:

    {"obs/state": {"feature": "observation.state", "dtype": "float32", "shape": [2], "names": ["shoulder_pan.pos",
     "gripper.pos"], "fps": 30}, "actions": {"feature": "action", ...}, "obs/top_image": {...}}

``feature`` is the name there, all else the entry of LeRobot's ``meta/info.json`` as it was. Files that were recorded
here have it where the robot names its numbers; those from other formats have none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from imitate.errors import DatasetError

FEATURES = "features"
_MAX_BYTES = 60_000  # HDF5 holds 64 KiB in an attribute


def as_attribute(entries: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the attribute of entries by array; None where it would be larger than HDF5 takes."""
    text = json.dumps(entries)
    return text if len(text.encode()) <= _MAX_BYTES else None


def features_of(attrs: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """Return the entries by array of the attributes of a file; {} where it has none.

    Raises:
        DatasetError: the attribute is not as the module describes it.
    """
    text = attrs.get(FEATURES)
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        found = None
    is_whole = isinstance(found, dict) and all(
        isinstance(entry, dict) and isinstance(entry.get("feature"), str)
        for entry in found.values()
    )
    if not is_whole:
        raise DatasetError(
            f"{where}: the attribute '{FEATURES}' of group 'data' is not a JSON object of entries with 'feature' "
            f"(begins {str(text)[:40]!r}): correct or remove it"
        )
    return dict(found)


def without_other_names(
    entries: Mapping[str, Mapping[str, Any]], others: Sequence[Mapping[str, Mapping[str, Any]]]
) -> dict[str, dict[str, Any]]:
    """Return the entries of a file that takes in demos of others; names that not all of them have become None.

    Numbers under the names of another robot's joints would move the wrong ones.
    """
    names, found = number_names(entries), {}
    for key, entry in entries.items():
        name = key.removeprefix("obs/")
        alike = all(number_names(other).get(name) == names.get(name) for other in others)
        found[key] = dict(entry) if alike else {**entry, "names": None}
    return found


def number_names(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the names of the numbers of vectors that have some, by observation (without ``obs/``) or array."""
    found = {}
    for key, entry in entries.items():
        names = dimension_names(entry.get("names"))
        if names and list(entry.get("shape") or ()) == [len(names)]:
            found[key.removeprefix("obs/")] = names
    return found


def dimension_names(names: Any) -> list[str]:
    """Return the names of a feature's numbers: a list, or lists in an object, as LeRobot has either; [] without."""
    if isinstance(names, dict):
        names = [name for value in names.values() if isinstance(value, list) for name in value]
    return [str(name) for name in names] if isinstance(names, list) else []
