"""Prepare raw observations for a bundle's networks, in numpy."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.schema import Observed
from imitate.errors import UserError
from imitate.functional.pixels import IMAGE_MODALITIES, image_divisor, image_type
from imitate.policy.finite import refuse_not_finite
from imitate.policy.raw_observations import newest_frames, refuse_missing

Arrays = dict[str, NDArray[np.float32]]
_OVERSHOOT = 0.1
"""Largest overshoot of resized images beyond black and white."""


class Observations:
    """The observations, or the goals, of a policy.

    Args:
        observed: shape and kind of each key.
        stacks: numbers of stacked frames that a caller may give.
        any_pixels: keys of images whose values are not checked.
        told: key of the instruction, which is given separately and never stacked.
    """

    def __init__(
        self,
        observed: Mapping[str, Observed],
        stacks: Collection[int] = (1,),
        any_pixels: Collection[str] = (),
        told: str | None = None,
    ) -> None:
        self.observed = dict(observed)
        self._shapes = {key: spec.shape for key, spec in observed.items()}
        self._stacks, self._any_pixels, self._told = frozenset(stacks), frozenset(any_pixels), told

    def prepare(self, raw: Mapping[str, Any]) -> Arrays:
        """Return float32 arrays of one step, images (H, W, C) from 0 to 1.

        Raises:
            UserError: a key is missing or mis-shaped, or an image has values beyond its range.
            NotFiniteError: a value is NaN or infinite.
        """
        try:
            arrays = {key: np.asarray(raw[key]) for key in self._shapes}
        except KeyError:
            refuse_missing(raw, self._shapes)
            raise
        for key, shape in self._shapes.items():
            if arrays[key].shape != shape:
                arrays = newest_frames(arrays, self._shapes, self._stacks, told=self._told)
                break
        return {key: self._prepared(key, value) for key, value in arrays.items()}

    def _prepared(self, key: str, value: NDArray[Any]) -> NDArray[np.float32]:
        refuse_not_finite(key, value[None])
        spec = self.observed[key]
        if value.shape != spec.shape:
            raise UserError(
                f"observation '{key}' has shape {(1, *value.shape)}; expected (..., "
                f"{', '.join(map(str, spec.shape))}) with modality '{spec.kind}'"
            )
        if spec.kind not in IMAGE_MODALITIES:
            return value.astype(np.float32)
        recorded = spec.image_type or None
        divisor = image_divisor(spec.kind, recorded, image_type(value.dtype), key)
        checked = spec.kind == "rgb" or recorded == "uint8"
        if checked and value.dtype != np.uint8 and key not in self._any_pixels:
            _check_pixels(key, value)
        return np.divide(value, divisor, dtype=np.float32, casting="unsafe")


def _check_pixels(key: str, value: NDArray[Any]) -> None:
    """Refuse floats beyond [0, 1] and integers beyond [0, 255]."""
    if not value.size:
        return
    highest = 1 if value.dtype.kind == "f" else 255
    low, high = float(value.min()), float(value.max())
    if low < -_OVERSHOOT or high > highest + _OVERSHOOT:
        raise UserError(
            f"image '{key}' has {value.dtype} values from {low:.4g} to {high:.4g}; "
            "expected uint8 from 0 to 255, or floats from 0 to 1: give pixels as uint8, or divide floats by 255"
        )
