"""Names of a LeRobot dataset's features, and the arrays of a demonstration file that they become.

LeRobot itself names them ``observation.*`` and ``action``. Many datasets have other names, such as ``state``,
``wrist_image`` and ``actions`` of openpi's conversions. Without any ``observation.*``, their images and vectors of
floats are observations, except those whose name says otherwise, such as ``reward``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from imitate.data.formats.lerobot_layout import AUTOMATIC
from imitate.errors import DatasetError

_PREFIX = "observation."
_ACTIONS = ("action", "actions")
_NO_OBSERVATION = re.compile(
    r"^next\.|action|reward|return|done|terminal|truncat|success|discount|weight|index|time"
)


def obs_name(feature: str) -> str:
    """Return our name of an observation: ``observation.images.top`` becomes ``top_image``."""
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
    """Return the name of the array in a demonstration file that each feature becomes, by feature.

    Args:
        features: entries of the features by name.
        action: feature that contains the actions; None: ``action`` or else ``actions``.
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
    """Describe which features with names other than LeRobot's became which arrays; "" if there are none.

    Args:
        keys: features, each with the array that it became.
    """
    found = [
        f"{name} -> {key}"
        for name, key in keys
        if (key.startswith("obs/") and not name.startswith(_PREFIX) and name != key)
        or (key == "actions" and name not in _ACTIONS)
    ]
    return ", ".join(found)
