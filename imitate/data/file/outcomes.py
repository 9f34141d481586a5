"""Outcomes of demos: whether each of them solves its task."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from imitate.data.file.hdf5_format import DemoFile


def outcomes(file: DemoFile, demos: Sequence[str]) -> dict[str, bool | None]:
    """Return whether each demo solves its task, or None if the file does not say.

    The attribute ``success`` says it. Without one, rewards of 0 and 1 do, if some demo has a 1: those of another kind
    say how good a step is, and those of a recording without rewards are all 0.
    """
    said = {demo: file.success(demo) for demo in demos}
    silent = [demo for demo, success in said.items() if success is None]
    if all(file.has(demo, "rewards") for demo in silent):
        rewarded = {demo: _is_rewarded(file, demo) for demo in silent}
        if None not in rewarded.values() and any(rewarded.values()):
            said |= rewarded
    return said


def _is_rewarded(file: DemoFile, demo: str) -> bool | None:
    """Return true if a demo has a reward of 1, None if it has other rewards than 0 and 1."""
    is_rewarded = False
    for _, rewards in file.pieces(demo, "rewards"):
        if not np.isin(rewards, (0, 1)).all():
            return None
        is_rewarded = is_rewarded or bool((rewards == 1).any())
    return is_rewarded
