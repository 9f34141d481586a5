"""Checks of raw observations from a caller: missing keys, stacked frames, wrong shapes. Needs no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from imitate.errors import UserError


def refuse_missing(raw: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Raise UserError if an observation lacks one of the keys."""
    missing = [key for key in keys if key not in raw]
    if missing:
        raise UserError(
            f"the policy needs {', '.join(missing)}, but was given {', '.join(raw) or 'nothing'}"
        )


def newest_frames(
    arrays: dict[str, Any],
    shapes: Mapping[str, Sequence[int]],
    stacks: Collection[int],
    *,
    batched: bool = False,
    told: str | None = None,
) -> dict[str, Any]:
    """Return observations without a time axis: the newest frame if frames are stacked.

    Args:
        arrays: arrays or tensors by key, (T, ...) where frames are stacked; with ``batched`` (B, T, ...).
        shapes: shape of one step of each key.
        stacks: allowed numbers of stacked frames T.
        batched: a batch dimension B comes first.
        told: key of an observation that the policy adds itself and that is never stacked.

    Raises:
        UserError: a key has neither the shape of one step nor that of a stack, or only some keys are stacked.
    """
    stacked = [key for key, value in arrays.items() if value.ndim != len(shapes[key]) + batched]
    if not stacked:
        return arrays
    for key in arrays:
        shape, single = tuple(arrays[key].shape), shapes[key]
        before = shape[: len(shape) - len(single)]
        is_stack = len(before) == 1 + batched and before[-1] in stacks
        if not (is_stack if key in stacked else key == told):
            wanted = ", ".join(map(str, ("B", *single) if batched else single))
            longer = sorted(set(stacks) - {1})
            frames = f"1 or {' or '.join(map(str, longer))} frames" if longer else "1 frame"
            raise UserError(
                f"observation '{key}' has shape {shape}; expected ({wanted}), or all of them stacked as "
                f"{frames}; several environments: batched_ob=True"
            )
    return {
        key: (value[:, -1] if batched else value[-1]) if key in stacked else value
        for key, value in arrays.items()
    }


def check_rate(policy: object, rate_hz: float) -> None:
    """Compare the rate of the loop with that of the policy's demonstrations, if the checkpoint records it.

    Raises:
        UserError: they differ by more than 1 %.
    """
    trained = getattr(policy, "control_freq", None)
    if trained is not None and abs(rate_hz - trained) > 0.01 * trained:
        raise UserError(
            f"the rate is {rate_hz:g} Hz, but the demonstrations have {trained:g} Hz: use that "
            "rate, or allow any (--any-rate)"
        )
