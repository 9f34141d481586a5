"""Interpretation of the flags in flat files, from the rows around them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.formats.report import Report

SAMPLED_ROWS = 100_000
"""Number of rows that are examined."""
# measured on HalfCheetah and Walker2d: at resets some dimension changes 4 to 34 times as much as within episodes
_CONTINUES_BELOW, _FEWEST_TIMEOUTS = 2.0, 5
_JUMP_ABOVE = 50.0


def note_early(lengths: NDArray[np.int64], report: Report) -> None:
    """Add a note to the report for timeouts that are not caused by a time limit.

    Args:
        lengths: lengths of the episodes that end with a timeout.
        report: receives the notes.
    """
    if lengths.size == 0 or lengths.min() == lengths.max():
        return
    early = int((lengths < lengths.max()).sum())
    report.note(
        f"{early} of {lengths.size} timeouts lie before step {lengths.max()}, the longest: there the recording was "
        "cut or a sub-goal reached, without a time limit; they stay timeouts, so values are bootstrapped after them"
    )


def goes_on(
    seen: NDArray[Any], ends: NDArray[np.bool_], by_clock: NDArray[np.bool_], report: Report
) -> bool:
    """Return true if the run continues after timeouts; also report jumps where no episode ends.

    Args:
        seen: (n, ...) the first observations of the file.
        ends: (N,) true at the last row of each episode.
        by_clock: (N,) true at timeouts.
        report: receives the notes.
    """
    count = len(seen)
    change = np.abs(np.diff(seen.reshape(count, -1).astype(np.float64), axis=0))
    inside = ~ends[: count - 1]
    if not inside.any():
        return False
    _note_jumps(change, inside, report)
    usual = change[inside].mean(axis=0)
    moving = usual > 0
    at_timeouts = change[by_clock[: count - 1]]
    if len(at_timeouts) < _FEWEST_TIMEOUTS or not moving.any():
        return False
    if (at_timeouts.mean(axis=0)[moving] / usual[moving]).max() > _CONTINUES_BELOW:
        return False
    report.note(
        f"the run continues after its {len(at_timeouts)} timeouts (the observation does not jump): they mark sub-goals "
        "or cuts, not resets; the following row is their next observation"
    )
    return True


def _note_jumps(change: NDArray[Any], inside: NDArray[np.bool_], report: Report) -> None:
    usual = np.sqrt(np.mean(change[inside] ** 2, axis=0))
    jump = (change / np.where(usual > 0, usual, np.inf)).max(axis=1)
    ordinary = float(np.median(jump[inside]))
    far = np.flatnonzero(inside & (jump > _JUMP_ABOVE * max(ordinary, 1e-12)))
    if far.size:
        report.note(
            f"{far.size} rows inside episodes jump more than {_JUMP_ABOVE:.0f} times as far as usual, the first after "
            f"row {far[0]}: resets without a flag? look at them before training"
        )
