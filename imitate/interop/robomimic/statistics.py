"""Conversion between robomimic's normalization and that of :class:`~imitate.models.preprocess.Preprocess`.

Up to 0.4 observations have ``mean`` and ``std``, since 0.5 ``offset`` and ``scale``, which are the same numbers;
actions have ``offset`` and ``scale``. Each is null or a nested list of shape (1, ...). With several datasets, a list
of equal sets counts as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from imitate.errors import CheckpointError
from imitate.models.fitting import Affine
from imitate.models.preprocess import Preprocess

NAMES = (("offset", "scale"), ("mean", "std"))


def affine_of(stats: Any, what: str) -> dict[str, Affine]:
    """Return offset and scale of each key; keys without normalization are left out.

    Args:
        stats: ``{key: {...}}``, a list with one such dict per dataset, or None.
        what: name of the statistics, for messages.

    Raises:
        CheckpointError: the datasets were normalized differently, or a key has neither pair of names.
    """
    each = stats if isinstance(stats, Sequence) else [stats]
    read = [
        {key: _pair(pair, f"{what} of '{key}'") for key, pair in (one or {}).items()}
        for one in each
    ]
    first = read[0] if read else {}
    if any(not _equal(first, other) for other in read[1:]):
        raise CheckpointError(
            f"{what}: differ between the datasets that the policy was trained on; robomimic cannot load such a file "
            "either"
        )
    return {key: pair for key, pair in first.items() if pair is not None}


def stats_of(offset: Tensor, scale: Tensor, names: tuple[str, str]) -> dict[str, Any]:
    """Return the statistics of one key in robomimic's form."""
    return {
        name: [value.flatten().tolist()] for name, value in zip(names, (offset, scale), strict=True)
    }


def obs_stats(preprocess: Preprocess, names: tuple[str, str]) -> dict[str, Any] | None:
    """Return the normalization of the observations that are normalized.

    Raises:
        CheckpointError: images or scans are normalized, which robomimic cannot do when it acts.
    """
    if not preprocess.normalizes_obs:
        return None
    entries = preprocess.to_dict()["obs"]
    for key, entry in entries.items():
        plain = bool((entry["offset"] == 0).all() and (entry["scale"] == 1).all())
        if entry["modality"] != "low_dim" and not plain:
            raise CheckpointError(
                f"observation '{key}' ({entry['modality']}) is normalized, but robomimic cannot act with normalized "
                "images or scans"
            )
    return {
        key: _image_stats(preprocess, key, names)
        if entry["modality"] != "low_dim"
        else stats_of(entry["offset"], entry["scale"], names)
        for key, entry in entries.items()
    }


def action_stats(preprocess: Preprocess) -> dict[str, Any]:
    """Return the normalization of actions, by key; the identity for a checkpoint without any."""
    return {
        key: stats_of(entry["offset"], entry["scale"], ("offset", "scale"))
        for key, entry in preprocess.to_dict()["actions"].items()
    }


def _image_stats(preprocess: Preprocess, key: str, names: tuple[str, str]) -> dict[str, Any]:
    """Return the identity in the shape of the raw image, because robomimic needs an entry for every key."""
    shape = (1, *preprocess.raw_shapes[key])
    values = (torch.zeros(shape), torch.ones(shape))
    return {name: value.tolist() for name, value in zip(names, values, strict=True)}


def _pair(entry: Mapping[str, Any] | None, what: str) -> Affine | None:
    if entry is None:
        return None
    for offset, scale in NAMES:
        if offset in entry and scale in entry:
            if entry[offset] is None or entry[scale] is None:
                return None
            return _numbers(entry[offset]), _numbers(entry[scale])
    raise CheckpointError(
        f"{what}: has {', '.join(entry) or 'nothing'}; expected offset and scale, or mean and std"
    )


def _numbers(value: Any) -> Tensor:
    # robomimic keeps these numbers in double precision until it acts, and so do we.
    return torch.as_tensor(value, dtype=torch.float64)


def _equal(first: Mapping[str, Affine | None], other: Mapping[str, Affine | None]) -> bool:
    if first.keys() != other.keys():
        return False
    for key, pair in first.items():
        theirs = other[key]
        if (pair is None) != (theirs is None):
            return False
        if (
            pair is not None
            and theirs is not None
            and not all(torch.equal(mine, yours) for mine, yours in zip(pair, theirs, strict=True))
        ):
            return False
    return True
