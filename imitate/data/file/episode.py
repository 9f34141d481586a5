"""Demonstrations in memory, their form in the file, and checks of their steps while they are recorded."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate.data.file.encoded_frames import EncodedFrames
from imitate.errors import DatasetError, nearest
from imitate.system.images import CHANNELS, given_array
from imitate.system.text import SIGNALS, counted

MAX_ATTR_BYTES = 60_000  # HDF5 limits attributes to 64 KiB, except texts


@dataclass(frozen=True)
class Episode:
    """Demonstration of T steps: ``actions[t]`` is taken at ``obs[t]`` and leads to ``next_obs[t]``.

    Attributes:
        obs: (T, ...) by key; images are uint8 (T, H, W, C), or :class:`EncodedFrames`.
        actions: (T, A).
        rewards: (T,).
        terminals: (T,) true if the task ended at this step.
        timeouts: (T,) true if the episode was truncated after this step, so that its continuation is unknown.
        next_obs: next observations in the form of ``obs``, or None.
        states: (T, S) simulator states, or None.
        attrs: attributes of the demo: ``success``, ``model_file``, ``language``, ``task_id`` ...
        steps: further arrays (T, ...), such as ``interventions``; ``signals/NAME`` (T,) has another number per step in
            addition to the reward, such as a cost.
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
    # Readers that use only `dones` do not bootstrap where it is 1, which is right only at terminals.
    arrays["dones"] = arrays["terminals"]
    return arrays


def _array(value: ArrayLike, where: str) -> NDArray[Any] | EncodedFrames:
    if isinstance(value, EncodedFrames):
        return value
    try:
        array = given_array(value)
    except ValueError as error:
        raise DatasetError(f"{where} is not an array of numbers: {error}") from error
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
        if isinstance(value, np.ndarray) and value.nbytes > MAX_ATTR_BYTES:
            raise DatasetError(
                f"{where}: attribute '{key}' has {value.nbytes} bytes: give a step array, or at most {MAX_ATTR_BYTES}"
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


NO_COLOURS = re.compile("depth|segmentation")
SCALARS = ("rewards", "terminals", "timeouts")
"""Arrays with one number per step, of any type."""


class StepForm(NamedTuple):
    """Shape and type of one step of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class StepForms:
    """Checks that all steps of an episode have the form of the file's demos, or else of the episode's first step.

    Args:
        forms: forms of a demo of the file by array; empty if there is no demo yet.
        origin: description of the demo, for messages.
        strict: refuse images that are not uint8 (H, W, C).
    """

    def __init__(self, forms: Mapping[str, StepForm], origin: str, *, strict: bool) -> None:
        self._forms = {key: form for key, form in forms.items() if key != "dones"}
        self._origin = f"in demo '{origin}'"
        self._strict = strict

    def check(self, values: Mapping[str, NDArray[Any]], where: str) -> None:
        """Check all values of one step.

        Raises:
            DatasetError: the message names the array, its value, shape or type, and what is expected.
        """
        first = not self._forms
        for key, value in values.items():
            form = self._forms.get(key)
            if form is None or value.shape != form.shape or value.dtype != form.dtype:
                self._check_form(key, value, form, f"{where}: '{key}'")
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                bad = value[~np.isfinite(value)][0]
                raise DatasetError(
                    f"{where}: '{key}' is {bad} (NaN or inf): correct its source, or discard the episode"
                )
        if first:
            self._forms = {key: StepForm(value.shape, value.dtype) for key, value in values.items()}
            self._origin = "at the episode's first step"
        elif len(values) < len(self._forms):
            missing = next(key for key in self._forms if key not in values)
            raise DatasetError(
                f"{where}: '{missing}' is missing, but it was present {self._origin}: give the same arrays at each step"
            )

    def _check_form(self, key: str, value: NDArray[Any], form: StepForm | None, where: str) -> None:
        if value.dtype.kind not in "fiub":
            raise DatasetError(f"{where} is not an array of numbers, but {value.dtype}")
        if form is None:
            if self._forms:
                raise DatasetError(
                    f"{where} is new; it was not present {self._origin} ({nearest(key, self._forms)}): "
                    "give the same arrays at each step"
                )
            if "/" in key.removeprefix("obs/") and not key.startswith(SIGNALS):
                raise DatasetError(f"{where}: a name must not contain '/': give another name")
            check_first(key, value.shape, value.dtype, where, strict=self._strict)
            return
        if key in SCALARS:
            _check_scalar(value, where)
            return
        if value.shape != form.shape:
            raise DatasetError(
                f"{where} has shape {value.shape}, but {form.shape} {self._origin}: give the same shape at each step"
            )
        if np.uint8 in (value.dtype, form.dtype) and value.dtype != form.dtype:
            raise DatasetError(
                f"{where} is {value.dtype}, but {form.dtype} {self._origin}: give the same type at each step"
            )


def check_first(
    key: str, shape: tuple[int, ...], dtype: np.dtype[Any], where: str, *, strict: bool
) -> None:
    """Check the form of an array that is given for the first time.

    Args:
        key: path of the array.
        shape: shape of one step.
        dtype: type of its values.
        where: beginning of the message.
        strict: refuse observations with '/' in their name, and images that are not uint8 (H, W, C).

    Raises:
        DatasetError: actions or rewards have a wrong shape; or a name or an image is refused.
    """
    if key == "actions" and (len(shape) != 1 or shape[0] == 0):
        raise DatasetError(
            f"{where} has shape {shape}: expected (A,), one number per action dimension"
        )
    if (key in SCALARS or key.startswith(SIGNALS)) and int(np.prod(shape)) != 1:
        raise DatasetError(f"{where} has shape {shape}: expected one number")
    group, _, name = key.partition("/")
    if not strict or group not in ("obs", "next_obs"):
        return
    if not name or "/" in name or name == ".":
        raise DatasetError(
            f"{where}: a name needs at least one letter and must not contain '/': give another name"
        )
    if not NO_COLOURS.search(name):
        _check_image(shape, dtype, where)


def _check_scalar(value: NDArray[Any], where: str) -> None:
    if value.size != 1:
        raise DatasetError(f"{where} has shape {value.shape}: expected one number")


def _check_image(shape: tuple[int, ...], dtype: np.dtype[Any], where: str) -> None:
    if len(shape) != 3:
        return
    if shape[0] in CHANNELS and shape[2] not in CHANNELS:
        raise DatasetError(
            f"{where} has shape {shape}, which looks like an image with channels first: expected (H, W, C), as "
            "np.moveaxis(image, 0, -1) gives; or open the writer with strict=False"
        )
    if shape[2] in CHANNELS and dtype.kind == "f":
        raise DatasetError(
            f"{where} is an image of {dtype}: expected uint8 from 0 to 255, as (255 * image).round().astype(np.uint8) "
            "gives for values from 0 to 1; for data other than pixels, open the writer with strict=False"
        )


def as_step(value: ArrayLike, where: str) -> NDArray[Any]:
    """Copy one value of a step to an array.

    Raises:
        DatasetError: the value cannot be converted to an array.
    """
    try:
        return given_array(value).copy()
    except ValueError as error:
        raise DatasetError(f"{where} is not an array of numbers: {error}") from error
