"""Checks of observations, actions and the control rate: missing keys, stacked frames, shapes, finite values.

Observations and actions that are not finite are refused, because a single NaN in an observation would stay in the state
of a recurrent policy until the episode's end. This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from imitate.errors import NotFiniteError, UserError, offered
from imitate.system.images import given_array

if TYPE_CHECKING:
    from torch import Tensor


def refuse_array(raw: object, keys: Iterable[str]) -> None:
    """Raise UserError if an observation is an array rather than a dict of arrays."""
    if not isinstance(raw, (dict, Mapping)):  # dict first: a check for Mapping takes microseconds
        wanted = ", ".join(f"'{key}': array" for key in keys)
        raise UserError(
            f"the policy needs a dict of observations {{{wanted}}}, but got {type(raw).__name__}"
        )


def refuse_missing(raw: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Raise UserError if an observation lacks one of the keys."""
    missing = [key for key in keys if key not in raw]
    if missing:
        raise UserError(
            f"the policy needs {', '.join(missing)}, but got {', '.join(raw) or 'nothing'}"
        )


def as_array(key: str, value: ArrayLike) -> NDArray[Any]:
    """Convert an observation to an array.

    Raises:
        UserError: the observation has masked values, or lists of different lengths.
    """
    try:
        return given_array(value)
    except ValueError as error:
        raise UserError(f"observation '{key}' is not an array of numbers: {error}") from error


def newest_frames(
    arrays: dict[str, Any],
    shapes: Mapping[str, Sequence[int]],
    stacks: Collection[int],
    *,
    batched: bool = False,
    lang_key: str | None = None,
) -> dict[str, Any]:
    """Return observations without a time axis: the newest frame if frames are stacked.

    Args:
        arrays: arrays or tensors by key: (...) or, if frames are stacked, (T, ...); with ``batched`` (B, ...) or
            (B, T, ...).
        shapes: shape of one step of each key.
        stacks: allowed numbers T of stacked frames.
        batched: true if arrays have a leading batch dimension B.
        lang_key: key of the instruction's embedding, which the policy adds itself and which is never stacked.

    Raises:
        UserError: an observation is neither a single step nor a stack of an allowed length, or only some are stacked.
    """
    stacked = [key for key, value in arrays.items() if value.ndim != len(shapes[key]) + batched]
    if not stacked:
        return arrays
    for key in arrays:
        shape, single = tuple(arrays[key].shape), shapes[key]
        before = shape[: len(shape) - len(single)]
        is_stack = len(before) == 1 + batched and before[-1] in stacks
        if not (is_stack if key in stacked else key == lang_key):
            wanted = ", ".join(map(str, ("B", *single) if batched else single))
            longer = sorted(set(stacks) - {1})
            frames = f"1 or {' or '.join(map(str, longer))} frames" if longer else "1 frame"
            raise UserError(
                f"observation '{key}' has shape {shape}; expected ({wanted}), or all observations stacked "
                f"as {frames}; for several environments, set batched_ob=True"
            )
    return {
        key: (value[:, -1] if batched else value[-1]) if key in stacked else value
        for key, value in arrays.items()
    }


def check_rate(policy: object, rate_hz: float) -> None:
    """Check that the rate of a control loop is the rate of the policy's demonstrations, if the checkpoint records it.

    Raises:
        UserError: the rates differ by more than 1 %.
    """
    trained = getattr(policy, "control_freq", None)
    if trained is not None and abs(rate_hz - trained) > 0.01 * trained:
        other = ", or allow any (--any-rate)" if offered("--any-rate") else ""
        raise UserError(
            f"the rate is {rate_hz:g} Hz, but the demonstrations have {trained:g} Hz: use "
            f"{trained:g} Hz{other}"
        )


_ENOUGH = float(np.finfo(np.float32).max)
"""If a sum of squares is below this limit, every value is finite, also in float32."""


def refuse_not_finite(key: str, value: NDArray[Any] | Tensor) -> None:
    """Check that the values of an observation (B, ...) are finite, before anything is computed from it.

    Raises:
        NotFiniteError: a value is NaN, infinite, or beyond float32, in which networks compute.
        UserError: the values are not numbers.
    """
    if not isinstance(value, np.ndarray):
        if not value.is_floating_point() or bool(value.isfinite().all()):
            return
        value = value.float().cpu().numpy()
    if value.dtype.kind not in "fiub":
        raise UserError(f"observation '{key}' has dtype {value.dtype}; expected numbers")
    # One dot product is several times as fast as a check of each value; NaN makes the comparison false.
    if value.dtype.kind != "f" or np.vdot(value, value) < _ENOUGH:
        return
    with np.errstate(over="ignore"):
        finite = np.isfinite(value.astype(np.float32))
    if not finite.all():
        raise NotFiniteError(
            f"observation '{key}' has {_places(value, finite)}: check the sensor or simulator that "
            "provides it; the policy did not act, and its memory is unchanged",
            _bad_rows(finite),
        )


def refuse_action(action: NDArray[np.floating[Any]]) -> None:
    """Check that all values of an action (B, A) are finite, before the action is clipped.

    Raises:
        NotFiniteError: a value is NaN or infinite.
    """
    values = action.reshape(-1)
    if isfinite(values.dot(values)):  # fast, since it does not compare numpy's numbers
        return
    finite = np.isfinite(action)
    if not finite.all():
        raise NotFiniteError(
            f"the policy's action has {_places(action, finite)}, although the observations are "
            "finite: the observations may be far from the training data, or the training may have "
            "failed; no action was returned, and the policy's memory is unchanged",
            _bad_rows(finite),
        )


def _bad_rows(finite: NDArray[np.bool_]) -> tuple[bool, ...]:
    return tuple((~finite.reshape(len(finite), -1).all(axis=1)).tolist())


def _places(value: NDArray[Any], finite: NDArray[np.bool_]) -> str:
    """Describe the number of values that are not finite, and the first one."""
    first = tuple(int(i) for i in np.argwhere(~finite)[0])
    where = ", ".join(map(str, first[1:]))
    row = f" of row {first[0]}" if len(value) > 1 else ""
    total = "1 value" if (count := int((~finite).sum())) == 1 else f"{count} values"
    return f"{total} not finite in float32, first {value[first]} at [{where}]{row}"
