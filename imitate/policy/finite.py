"""Checks that refuse observations and actions of a policy that are not finite.

A single NaN in an observation would stay in the state of a recurrent policy until the episode's end. This module does
not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from imitate.errors import NotFiniteError, UserError

if TYPE_CHECKING:
    from torch import Tensor

_ENOUGH = float(np.finfo(np.float32).max)
"""A sum of squares below it proves that every value is finite, in float32 too."""


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
    # One dot product is several times as fast as a check of each value; a comparison with NaN is false.
    if value.dtype.kind != "f" or np.vdot(value, value) < _ENOUGH:
        return
    with np.errstate(over="ignore"):
        finite = np.isfinite(value.astype(np.float32))
    if not finite.all():
        raise NotFiniteError(
            f"observation '{key}' has {_places(value, finite)}: look at its sensor or simulator; the policy did not "
            "act and remembers the observations before",
            _bad_rows(finite),
        )


def refuse_action(action: NDArray[np.floating[Any]]) -> None:
    """Check that an action (B, A), in the units of the data and not yet clipped, is finite.

    Raises:
        NotFiniteError: a value is NaN or infinite.
    """
    if np.vdot(action, action) < np.inf:
        return
    finite = np.isfinite(action)
    if not finite.all():
        raise NotFiniteError(
            f"the policy's action has {_places(action, finite)}, from finite observations: they may be far from the "
            "data, or its training may have failed; nothing was returned, and its state is as before",
            _bad_rows(finite),
        )


def _bad_rows(finite: NDArray[np.bool_]) -> tuple[bool, ...]:
    return tuple((~finite.reshape(len(finite), -1).all(axis=1)).tolist())


def _places(value: NDArray[Any], finite: NDArray[np.bool_]) -> str:
    """Describe how many values are not finite, and the first of them."""
    first = tuple(int(i) for i in np.argwhere(~finite)[0])
    where = ", ".join(map(str, first[1:]))
    row = f" of row {first[0]}" if len(value) > 1 else ""
    total = "1 value" if (count := int((~finite).sum())) == 1 else f"{count} values"
    return f"{total} not finite in float32, first {value[first]} at [{where}]{row}"
