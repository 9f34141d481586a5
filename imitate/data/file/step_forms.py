"""Checks of steps while they are recorded, so that a mistake is reported at the first step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate.errors import DatasetError, nearest
from imitate.system.text import SIGNALS

_CHANNELS = (1, 3, 4)
_NO_COLOURS = re.compile("depth|segmentation")
SCALARS = ("rewards", "terminals", "timeouts")
"""Arrays with one number per step, of any type."""


class StepForm(NamedTuple):
    """Shape and type of one step of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class StepForms:
    """Forms that the steps of an episode must have: as in the file's demos, or else as in the episode's first step.

    Args:
        forms: forms of a demo of the file by array; empty if there is no demo yet.
        origin: name of that demo.
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
    if not _NO_COLOURS.search(name):
        _check_image(shape, dtype, where)


def _check_scalar(value: NDArray[Any], where: str) -> None:
    if value.size != 1:
        raise DatasetError(f"{where} has shape {value.shape}: expected one number")


def _check_image(shape: tuple[int, ...], dtype: np.dtype[Any], where: str) -> None:
    if len(shape) != 3:
        return
    if shape[0] in _CHANNELS and shape[2] not in _CHANNELS:
        raise DatasetError(
            f"{where} has shape {shape}, which looks like an image with channels first: expected (H, W, C), as "
            "np.moveaxis(image, 0, -1) gives; or open the writer with strict=False"
        )
    if shape[2] in _CHANNELS and dtype.kind == "f":
        raise DatasetError(
            f"{where} is an image of {dtype}: expected uint8 from 0 to 255, as (255 * image).round().astype(np.uint8) "
            "gives for values from 0 to 1; for data other than pixels, open the writer with strict=False"
        )


def as_step(value: ArrayLike, where: str) -> NDArray[Any]:
    """Copy one value of a step.

    Raises:
        DatasetError: it is not an array.
    """
    try:
        return np.array(value)
    except ValueError as error:
        raise DatasetError(f"{where} is not an array of numbers: {error}") from error
