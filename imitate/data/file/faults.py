"""Checks of a demo's arrays; each function raises DatasetError with a message that contains the remedy.

One function finds demos that are much shorter or longer than the others, because they may have ended too early or late.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.file.hdf5_format import DemoFile
from imitate.errors import DatasetError
from imitate.system.images import CHANNELS, IMAGE_MODALITIES
from imitate.system.text import counted

ACTION_LIMIT = 1.0 + 1e-5
"""Largest absolute value of an action that counts as within [-1, 1], because of rounding."""


def check_length(file: DemoFile, demo: str) -> int:
    """Return the number of steps of a demo.

    Raises:
        DatasetError: there are no actions or no steps, or the attribute ``num_samples`` differs.
    """
    length = file.length(demo)
    if length == 0:
        raise DatasetError(f"{file.path}: demo '{demo}': 'actions' has no step: remove the demo")
    said = file.attrs(demo, ("num_samples",)).get("num_samples", length)
    if said != length:
        raise DatasetError(
            f"{file.path}: demo '{demo}': attribute 'num_samples' is {said}, but 'actions' has "
            f"{counted(length, 'step')}: "
            "correct the attribute, or collect the demo again"
        )
    return length


def check_shape(
    file: DemoFile, demo: str, key: str, length: int, step: tuple[int, ...], first: str
) -> None:
    """Refuse an array ``key`` unless it has ``length`` steps, each shaped as in demo ``first``."""
    shape = file.shape(demo, key)
    if shape[0] != length:
        raise DatasetError(
            f"{file.path}: demo '{demo}': '{key}' has {counted(shape[0], 'step')}, but 'actions' has {length}: "
            "cut them to the same length, or leave the demo out with a filter key"
        )
    if shape[1:] != step:
        raise DatasetError(
            f"{file.path}: demo '{demo}': a step of '{key}' has shape {shape[1:]}, but {step} in {first}: "
            "leave one of the two out with a filter key, or give both the same shape"
        )


def check_numeric(file: DemoFile, demo: str, key: str) -> None:
    """Refuse an array ``key`` that is not numeric."""
    dtype = file.dtype(demo, key)
    if dtype.kind not in "fiub":
        raise DatasetError(
            f"{file.path}: demo '{demo}': '{key}' holds {dtype}, not numbers: write it as float32 or uint8"
        )


def check_finite(values: NDArray[Any], file: DemoFile, demo: str, key: str, start: int = 0) -> None:
    """Refuse NaN and infinity.

    Args:
        values: (T, ...) steps of the array, of any dtype.
        file: the file, for the message.
        demo: name of the demo, for the message.
        key: name of the array, for the message.
        start: step of ``values[0]``.
    """
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    at = np.argwhere(~np.isfinite(values))[0]
    raise DatasetError(
        f"{file.path}: demo '{demo}': '{key}' is {values[tuple(at)]} at step {start + at[0]}: "
        "correct the value, or leave the demo out with a filter key"
    )


def are_beyond(actions: NDArray[Any]) -> NDArray[np.bool_]:
    """Return true for each number outside of [-1, 1], for any numeric type."""
    found: NDArray[np.bool_] = (actions > ACTION_LIMIT) | (actions < -ACTION_LIMIT)
    return found


def check_bounded(
    values: NDArray[Any], file: DemoFile, demo: str, key: str, start: int = 0
) -> None:
    """Refuse actions outside [-1, 1], the range of the networks' outputs; arguments as for :func:`check_finite`."""
    beyond = np.argwhere(are_beyond(values))
    if not len(beyond):
        return
    at = beyond[0]
    raise DatasetError(
        f"{file.path}: demo '{demo}': '{key}' is {values[tuple(at)]:.6g} at step {start + at[0]}, outside [-1, 1]: set "
        f"train.action_config.{key}.normalization=min_max, or rescale the actions in the file"
    )


def is_channel_first(step: Sequence[int]) -> bool:
    """Return true if the shape of a step looks like an image (C, H, W): few channels before two longer sides."""
    return len(step) == 3 and step[0] in CHANNELS and step[2] not in CHANNELS


def check_modality(file: DemoFile, demo: str, key: str, modality: str) -> None:
    """Refuse an observation ``key`` that does not look like its modality."""
    step, dtype = file.shape(demo, f"obs/{key}")[1:], file.dtype(demo, f"obs/{key}")
    is_image = len(step) >= 3 or (dtype == np.uint8 and len(step) >= 2)
    if modality == "low_dim" and is_image:
        raise DatasetError(
            f"{file.path}: demo '{demo}': 'obs/{key}' is an image (shape {step}, {dtype}) but declared low_dim: "
            "list it under observation.modalities.obs.rgb (or depth)"
        )
    if modality in IMAGE_MODALITIES and len(step) != 3:
        raise DatasetError(
            f"{file.path}: demo '{demo}': 'obs/{key}' has shape {step} but is declared {modality}, which is (H, W, C): "
            "list it under observation.modalities.obs.low_dim"
        )
    if modality in IMAGE_MODALITIES and is_channel_first(step):
        raise DatasetError(
            f"{file.path}: demo '{demo}': images of 'obs/{key}' are {step}, channels first: expected (H, W, C); to "
            f"turn them: imitate dataset doctor {file.path} --fix --only image_layout --out NEW.hdf5"
        )


_SHORT = 0.25  # a demo below this multiple of the median length is unusually short
_LONG = 3.0  # a demo above this multiple is unusually long
_OUTLYING = 6.0  # smallest deviation, in robust standard deviations of the logarithm of the length
_FEWEST = 5


_ROUNDING = 1e-9
"""Differences of logarithms up to this size are rounding, which depends on the processor."""


def odd_lengths(lengths: Sequence[int]) -> dict[str, list[int]]:
    """Return the indices of 'short' and 'long' demos, given the number of steps of each demo (at least 1).

    For fewer than 5 demos the result is empty.
    """
    found: dict[str, list[int]] = {"short": [], "long": []}
    if len(lengths) < _FEWEST:
        return found
    logs = np.log(lengths)
    median = float(np.median(logs))
    spread = 1.4826 * float(np.median(np.abs(logs - median)))
    for number, value in enumerate(logs):
        if abs(value - median) > _OUTLYING * spread:
            if value < median + np.log(_SHORT) - _ROUNDING:
                found["short"].append(number)
            elif value > median + np.log(_LONG) + _ROUNDING:
                found["long"].append(number)
    return found
