"""Demonstrations in memory, and their form in the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate.data.file.encoded_frames import EncodedFrames
from imitate.errors import DatasetError
from imitate.system.text import SIGNALS, counted

_MAX_ATTR_BYTES = 60_000  # limit of HDF5's attributes, 64 KiB; longer texts are possible


@dataclass(frozen=True)
class Episode:
    """Demonstration of T steps: ``actions[t]`` is taken at ``obs[t]`` and leads to ``next_obs[t]``.

    Attributes:
        obs: (T, ...) by key; images are uint8 (T, H, W, C), or :class:`EncodedFrames`.
        actions: (T, A).
        rewards: (T,).
        terminals: (T,) true where the task ended at this step.
        timeouts: (T,) true where the episode was truncated after this step, so that its continuation is unknown.
        next_obs: next observations in the same form, or None.
        states: (T, S) simulator states, or None.
        attrs: attributes of the demo: ``success``, ``model_file``, ``language``, ``task_id`` ...
        steps: further (T, ...) arrays, such as ``interventions``; ``signals/NAME`` (T,) are numbers of each action
            beside the reward, such as costs.
    """

    obs: Mapping[str, ArrayLike]
    actions: ArrayLike
    rewards: ArrayLike
    terminals: ArrayLike
    timeouts: ArrayLike
    next_obs: Mapping[str, ArrayLike] | None = None
    states: ArrayLike | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    steps: Mapping[str, ArrayLike] = field(default_factory=dict)


def arrays_of(episode: Episode, where: str) -> dict[str, NDArray[Any]]:
    """Return all arrays of an episode by their names in the file.

    Raises:
        DatasetError: values are not numbers or not finite, or lengths differ.
    """
    given: dict[str, Any] = {
        "actions": episode.actions,
        "rewards": episode.rewards,
        "terminals": episode.terminals,
        "timeouts": episode.timeouts,
        **episode.steps,
        **{f"obs/{key}": value for key, value in episode.obs.items()},
        **{f"next_obs/{key}": value for key, value in (episode.next_obs or {}).items()},
    }
    if episode.states is not None:
        given["states"] = episode.states
    arrays: dict[str, Any] = {
        key: _array(value, f"{where}: '{key}'") for key, value in given.items()
    }
    if arrays["actions"].ndim != 2 or len(arrays["actions"]) == 0:
        raise DatasetError(
            f"{where}: 'actions' has shape {arrays['actions'].shape}; expected (T, A) with T at least 1"
        )
    length = len(arrays["actions"])
    for key, value in arrays.items():
        if value.ndim == 0 or len(value) != length:
            raise DatasetError(
                f"{where}: '{key}' has shape {value.shape}, but 'actions' has {counted(length, 'step')}: give "
                "both for each step"
            )
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise DatasetError(f"{where}: '{key}' holds NaN or inf: correct or discard the episode")
    signals = [key for key in arrays if key.startswith(SIGNALS)]
    for key in ("rewards", "terminals", "timeouts", *signals):
        if arrays[key].size != length:
            raise DatasetError(f"{where}: '{key}' has shape {arrays[key].shape}: expected (T,)")
        arrays[key] = arrays[key].reshape(length)
    for key in ("rewards", *signals):
        arrays[key] = arrays[key].astype(np.float32)
    for key in ("terminals", "timeouts"):
        arrays[key] = arrays[key].astype(bool).astype(np.uint8)
    # Readers that only use `dones` stop bootstrapping there, which is right only at terminals.
    arrays["dones"] = arrays["terminals"]
    return arrays


def _array(value: ArrayLike, where: str) -> NDArray[Any] | EncodedFrames:
    if isinstance(value, EncodedFrames):
        return value
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind not in "fiub":
        raise DatasetError(
            f"{where} is not an array of numbers: stack its steps into one (T, ...) array"
        )
    return array


def attrs_of(episode: Episode, where: str) -> dict[str, Any]:
    """Convert attributes to HDF5's types: text, numbers and small arrays; everything else becomes JSON text.

    Raises:
        DatasetError: an attribute cannot be converted, or is too large.
    """
    kept = {}
    for key, value in episode.attrs.items():
        if not isinstance(value, str | bool | int | float | np.generic | np.ndarray):
            try:
                value = json.dumps(value)
            except (TypeError, ValueError) as error:
                raise DatasetError(
                    f"{where}: attribute '{key}' is a {type(value).__name__}: give text, a number, or a JSON value"
                ) from error
        if isinstance(value, np.ndarray) and value.nbytes > _MAX_ATTR_BYTES:
            raise DatasetError(
                f"{where}: attribute '{key}' has {value.nbytes} bytes: give a step array, or at most {_MAX_ATTR_BYTES}"
            )
        kept[key] = value
    return kept


def stacked(values: list[NDArray[Any]], where: str) -> NDArray[Any]:
    """Stack the steps of one key as (T, ...).

    Raises:
        DatasetError: their shapes differ.
    """
    shapes = {value.shape for value in values}
    if len(shapes) > 1:
        raise DatasetError(
            f"{where}: its steps have the shapes {sorted(shapes)}: give the same shape at each step"
        )
    return np.stack(values)
