"""Outcomes of demos: success or failure in the task."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from imitate.data.file.hdf5_format import DemoFile


def outcomes(file: DemoFile, demos: Sequence[str]) -> dict[str, bool | None]:
    """Return for each demo true if it solves its task, false if not, None if unknown.

    The attribute ``success`` decides. Without it, rewards decide if they are all 0 or 1 and some demo has a 1: other
    rewards measure how good a step is, and rewards that are all 0 may just not have been recorded.
    """
    said = {demo: file.success(demo) for demo in demos}
    silent = [demo for demo, success in said.items() if success is None]
    if all(file.has(demo, "rewards") for demo in silent):
        rewarded = {demo: _is_rewarded(file, demo) for demo in silent}
        if None not in rewarded.values() and any(rewarded.values()):
            said |= rewarded
    return said


def _is_rewarded(file: DemoFile, demo: str) -> bool | None:
    """Return true if a demo has a reward of 1, false if all its rewards are 0, None if it has other rewards."""
    is_rewarded = False
    for _, rewards in file.pieces(demo, "rewards"):
        if not np.isin(rewards, (0, 1)).all():
            return None
        is_rewarded = is_rewarded or bool((rewards == 1).any())
    return is_rewarded
