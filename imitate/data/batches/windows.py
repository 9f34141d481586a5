"""Rows of the store for the windows of samples; windows never leave their demo."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


class WindowRows(NamedTuple):
    """Rows of a batch of windows.

    Attributes:
        rows: (B, T) rows; steps outside the demo repeat its first or last row.
        wanted: (B, T) rows without regard to the demo's ends.
        demo: (B,) number of the demo.
        last: (B, 1) last row of the demo.
    """

    rows: Rows
    wanted: Rows
    demo: Rows
    last: Rows

    @property
    def real(self) -> NDArray[np.bool_]:
        """Mask (B, T), true if the step is inside the demo."""
        real: NDArray[np.bool_] = self.rows == self.wanted
        return real


class Windows:
    """All windows of a set of demos, one per step.

    A window has ``frame_stack - 1`` rows before the step, and ``seq_length`` rows from it on.

    Args:
        demo_start: (number of demos,) first row of each demo.
        demo_end: (number of demos,) index after the last row of each demo.
        frame_stack: number of observations up to and including the window's step.
        seq_length: number of steps from the window's step on.
        pad_frame_stack: keep windows that reach before the demo.
        pad_seq_length: keep windows that reach beyond its end.
    """

    def __init__(
        self,
        demo_start: Rows,
        demo_end: Rows,
        frame_stack: int = 1,
        seq_length: int = 1,
        pad_frame_stack: bool = True,
        pad_seq_length: bool = True,
    ) -> None:
        self._start, self._end, self._last = demo_start, demo_end, demo_end - 1
        self._offsets = np.arange(1 - frame_stack, seq_length)
        skipped = 0 if pad_frame_stack else frame_stack - 1
        tail = 0 if pad_seq_length else seq_length - 1
        self._all_steps = skipped == 0 and tail == 0
        counts = np.maximum(demo_end - demo_start - skipped - tail, 0)
        self._first = demo_start + skipped
        ends = np.cumsum(counts)
        self._window_start = ends - counts
        self._window_end = ends.astype(np.uint64)

    def __len__(self) -> int:
        return int(self._window_end[-1])

    @property
    def length(self) -> int:
        """T, number of steps in a window."""
        return len(self._offsets)

    def steps(self, index: Rows) -> tuple[Rows, Rows]:
        """Return demo (B,) and row (B,) of the step of each window.

        Raises:
            IndexError: there is no such window.
        """
        # negative numbers become too large as unsigned ones, so that one comparison finds both
        demo: Rows = self._window_end.searchsorted(index.view(np.uint64), side="right")
        if demo.size and demo.max() == len(self._end):
            raise IndexError(f"samples {index.min()} to {index.max()} of {len(self)}")
        if self._all_steps:
            return demo, index
        return demo, index - self._window_start[demo] + self._first[demo]

    def rows(self, index: Rows) -> WindowRows:
        """Return the rows of the windows ``index`` (B,)."""
        demo, step = self.steps(index)
        wanted = step[:, None] + self._offsets
        last = self._last[demo][:, None]
        rows = wanted
        if self._offsets[-1] > 0:
            rows = np.minimum(rows, last)
        if self._offsets[0] < 0:
            rows = np.maximum(rows, self._start[demo][:, None])
        return WindowRows(rows, wanted, demo, last)
