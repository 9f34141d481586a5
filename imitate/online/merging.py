"""Merge the steps of several workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.online.steps import Collected, Step


def merged_parts(
    parts: Sequence[Collected], lost: Sequence[int], messages: Sequence[str]
) -> Collected:
    """Concatenate the steps of several processes in the order of their lanes."""
    parts = sorted(parts, key=lambda part: int(part.lanes[0]))
    steps = [_side_by_side(row) for row in zip(*(part.steps for part in parts), strict=True)]
    return Collected(
        steps,
        np.concatenate([part.lanes for part in parts]),
        [episode for part in parts for episode in part.episodes],
        min(part.version for part in parts),
        (*messages, *(text for part in parts for text in part.messages)),
        np.array(lost, dtype=np.int64),
    )


def _side_by_side(steps: Sequence[Step]) -> Step:
    if len(steps) == 1:
        return steps[0]

    def joined(name: str) -> Any:
        values = [getattr(step, name) for step in steps]
        if isinstance(values[0], dict):
            return {key: np.concatenate([value[key] for value in values]) for key in values[0]}
        return np.concatenate(values)

    names = ("obs", "actions", "rewards", "terminals", "timeouts", "next_obs")
    return Step(
        **{name: joined(name) for name in names},
        lost=_joined_marks(steps, "lost"),
        extras=joined("extras"),
        intervened=_joined_marks(steps, "intervened"),
    )


def _joined_marks(steps: Sequence[Step], name: str) -> NDArray[np.bool_] | None:
    """Return the marks of all environments, or None if no process has any."""
    found = [getattr(step, name) for step in steps]
    if all(marks is None for marks in found):
        return None
    unmarked = [np.zeros(len(step.rewards), dtype=np.bool_) for step in steps]
    joined: NDArray[np.bool_] = np.concatenate(
        [none if marks is None else marks for marks, none in zip(found, unmarked, strict=True)]
    )
    return joined
