"""Original names of a dataset's arrays: the attribute ``features`` of the group ``data``.

It is a JSON object with one entry per array, in the order of the source's features:

    {"obs/state": {"feature": "observation.state", "dtype": "float32", "shape": [2], "names": ["shoulder_pan.pos",
     "gripper.pos"], "fps": 30}, "actions": {"feature": "action", ...}, "obs/top_image": {...}}

``feature`` is the original name; the rest is the unchanged entry of LeRobot's ``meta/info.json``. Files that were
recorded with this package have the attribute if the robot has names for the components of its vectors; files from other
formats do not have it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from imitate.errors import DatasetError
from imitate.system.plain_files import json_value

if TYPE_CHECKING:
    from imitate.data.file.hdf5_format import DemoFile

FEATURES = "features"
_MAX_BYTES = 60_000  # HDF5 limits an attribute to 64 KiB


def as_attribute(entries: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the attribute for entries by array, or None if it would exceed HDF5's limit."""
    text = json.dumps(entries)
    return text if len(text.encode()) <= _MAX_BYTES else None


def features_of(attrs: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """Return the entries by array from the attributes of a file; {} for a file without ``features``.

    Raises:
        DatasetError: the attribute does not have the form described in the module.
    """
    text = attrs.get(FEATURES)
    if text is None:
        return {}
    try:
        found = json_value(text)
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
    """Return the entries for a file with demos of several files; names on which not all files agree become None.

    Otherwise a policy's actions could be sent to the wrong joints of another robot.
    """
    names, found = number_names(entries), {}
    for key, entry in entries.items():
        name = key.removeprefix("obs/")
        alike = all(number_names(other).get(name) == names.get(name) for other in others)
        found[key] = dict(entry) if alike else {**entry, "names": None}
    return found


def number_names(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the names of the components of vectors by observation (without ``obs/``) or array, if they have names."""
    found = {}
    for key, entry in entries.items():
        names = dimension_names(entry.get("names"))
        if names and list(entry.get("shape") or ()) == [len(names)]:
            found[key.removeprefix("obs/")] = names
    return found


def names_in(file: DemoFile) -> dict[str, list[str]]:
    """Return the names of the components of vectors by array, such as ``obs/state``; {} if the file has no names."""
    try:
        found = features_of(file.file_attrs, str(file.path))
    except DatasetError:
        return {}
    names = number_names(found)
    return {
        key: names[key.removeprefix("obs/")] for key in found if key.removeprefix("obs/") in names
    }


def dimension_words(dimensions: Iterable[int], names: Sequence[str] | None, most: int = 10) -> str:
    """Format the first few dimensions of a list, each with its name if it has one: ``3 (wrist_roll), 5``."""
    named = dict(enumerate(names or ()))
    shown = [f"{at} ({named[at]})" if at in named else str(at) for at in map(int, dimensions)]
    return ", ".join(shown[:most]) + (" ..." if len(shown) > most else "")


def dimension_names(names: Any) -> list[str]:
    """Return the names of a feature's components as a flat list; LeRobot stores a list, nested lists or an object.

    Returns [] if the feature has no names.
    """
    if isinstance(names, dict):
        names = [value for value in names.values() if isinstance(value, list)]
    if not isinstance(names, list):
        return []
    parts = [dimension_names(name) if isinstance(name, list) else [str(name)] for name in names]
    return [name for part in parts for name in part]
